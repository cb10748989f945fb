"""A run of four ranks in every exchange format: the events that are read back are those of the trace, and every message has its arrow."""

import csv
import sys
from pathlib import Path

import launch
import pytest

import hpcpar.trace
from hpcpar.trace.schema import Kind

sys.path.append(str(Path(__file__).parents[1] / "unit" / "exports"))

import archive
import made
import trace_processor

SETTINGS = {
    "model__width": 8,
    "train__batch": 4,
    "train__steps": 2,
    "plan__pp": 2,
    "plan__dp": 2,
    "plan__microbatches": 2,
    "plan__schedule": "zb-h1",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    done = launch.hpcpar("train", launch.configuration(folder, **SETTINGS), "--out", folder / "run", ranks=4)
    assert done.code == 0, done.err
    return folder / "run"


def test_a_run_comes_back_in_every_format(run, tmp_path):
    trace = hpcpar.trace.open(run)
    for formats in ({"perfetto": "t.pftrace", "otf2": "otf2", "events": "e.csv"}, {"perfetto": "t.json.gz", "events": "e.parquet"}):
        options = [x for option, name in formats.items() for x in (f"--{option}", tmp_path / name)]
        done = launch.hpcpar("analyse", run, "--json", *options)
        assert done.code == 0, done.err
    first = made.first_of(trace)
    want = made.expected(trace, first)
    assert {k for _, k, *_ in want} >= {"f", "i", "w", "update", "send", "receive", "collective", "wait"}
    pairs = trace.messages().pairs
    names = ("source", "destination", "microbatch", "bytes", "sent", "received")
    arrows = sorted(zip(*((pairs[n] - (first if n in ("sent", "received") else 0)).tolist() for n in names), strict=True))
    sends = sum(int((trace.events(r)["kind"] == Kind.SEND).sum()) for r in trace.present)
    assert len(arrows) == sends > 0
    for read in (trace_processor.native(tmp_path / "t.pftrace"), trace_processor.chrome(tmp_path / "t.json.gz")):
        assert made.found(read.of_events()) == want
        found = []
        for s, r in read.arrows:
            a, b = (int(x.process.split()[1]) for x in (s, r))
            found.append((a, b, s.args.get("microbatch", -1), s.args["bytes"], s.start, r.end))
        assert sorted(found) == arrows
        assert {n for p, n in read.counters if p.startswith("rank 3 ")} >= {"memory parameters", "memory stash", "messages on the way"}
    back = archive.read(tmp_path / "otf2")
    calls = [k for k in Kind if k not in (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)]
    regions = sorted((s, e, a["kind"].lower(), a["sequence"]) for _, s, e, _, a in back.regions)
    assert regions == sorted((s, e, k, n) for _, k, s, e, _, n in want if Kind[k.upper()] in calls)
    assert sorted((m[0], m[1], m[6], m[2], m[5]) for m in back.messages) == sorted((a, b, *rest) for a, b, _, *rest in arrows)
    assert back.alone == 0 and len(back.collectives) == sum(k == "collective" for _, k, *_ in want)
    groups = {tuple(c[4]) for c in back.collectives if len(c[4]) == 2}
    assert groups == {(f"rank {a}", f"rank {b}") for a, b in ((0, 1), (2, 3), (0, 2), (1, 3))}  # of dp and of pp
    import pyarrow.parquet as pq

    with open(tmp_path / "e.csv", newline="") as file:
        rows = [{n: v or None for n, v in row.items()} for row in csv.DictReader(file)]
    assert len(rows) == len(want)
    assert rows == [{n: v if v is None else str(v) for n, v in row.items()} for row in pq.read_table(tmp_path / "e.parquet").to_pylist()]
