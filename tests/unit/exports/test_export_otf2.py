"""OTF2 archives, read back with the package otf2 and, where it is installed, with otf2-print."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import archive
import made
import pytest
from hypothesis import example, given, settings

import hpcpar.trace
from hpcpar.draw.exports import otf2_archive
from hpcpar.errors import PlanError
from hpcpar.schedule import generate
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

CALLS = [k for k in Kind if k not in (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)]


def calls(trace, first):
    """(rank, start, end, kind, sequence) of what a region stands for."""
    every = made.expected(trace, first)
    return sorted((rank, start, end, kind, n) for rank, kind, start, end, _, n in every if Kind[kind.upper()] in CALLS)


@given(made.traces)
@example(made.HARD)
@settings(max_examples=8, deadline=None)
def test_a_random_trace_comes_back_whole(drawn):
    with tempfile.TemporaryDirectory() as folder:
        trace = made.write(Path(folder), drawn)
        otf2_archive.save(trace, Path(folder) / "otf2")
        read = archive.read(Path(folder) / "otf2")
        first = made.first_of(trace)
        assert set(read.locations.values()) == {"rank 0", "rank 1", "rank 2"}
        found = [(read.locations[where], s, e, a["kind"].lower(), a["sequence"]) for where, s, e, _, a in read.regions]
        assert sorted(found) == calls(trace, first)
        pairs = trace.messages().pairs
        names = ("source", "destination", "sent", "left", "posted", "received", "bytes")
        shift = {"sent", "left", "posted", "received"}
        columns = [(pairs[n] - (first if n in shift else 0)).tolist() for n in names]
        assert sorted(read.messages) == sorted(zip(*columns, strict=True)) and read.alone == 0 and len(pairs) == len(drawn[1])
        groups = [(f"rank {r}", e) for r in trace.present for e in trace.events(r) if e["kind"] == Kind.COLLECTIVE]
        assert not read.one_sided
        want = sorted((r, int(e["start"]) - first, int(max(e["start"], e["end"])) - first) for r, e in groups)
        assert sorted(c[:3] for c in read.collectives) == want
        for rank in range(3):
            assert read.metrics[f"rank {rank}", "memory stash"] == [(t - first, t + rank) for t in (3000, 90000)]


def test_one_sided_calls_members_and_overlapping_calls(tmp_path):
    plan = {"order": ["pp", "dp", "cp", "tp"], "pp": 2, "dp": 2, "cp": 1, "tp": 1, "ep": 2, "replicas": [], "schedule": "1f1b"}
    description = {"config": {"plan": plan}, "hosts": [{"name": f"node{r // 2}"} for r in range(4)]}
    for rank in range(4):
        if rank == 1:
            continue
        with Writer(tmp_path, rank, 4, description) as writer:
            writer.record(Kind.F, 100, 300, stage=0, microbatch=3)
            writer.record(Kind.WAIT, 150, 250, operation=Operation.ALLREDUCE, axis=Axis.DP, bytes=12)
            writer.record(Kind.UPDATE, 200, 400)  # by the owner's thread
            writer.record(Kind.COPY, 200, 400, operation=Operation.TO_HOST)
            writer.record(Kind.COPY, 201, 401, operation=Operation.TO_HOST)
            writer.record(Kind.SEND, 220, 230, operation=Operation.PUSH, axis=Axis.DP, peer=2, bytes=8)
            writer.record(Kind.RECEIVE, 220, 240, operation=Operation.PULL, axis=Axis.DP, peer=2, bytes=9)
            writer.record(Kind.COLLECTIVE, 300, 320, operation=Operation.REDUCE_SCATTER, axis=Axis.DP, bytes=12)
            writer.record(Kind.COLLECTIVE, 320, 330, operation=Operation.DISPATCH, axis=Axis.EP, bytes=13)
            writer.record(Kind.COLLECTIVE, 330, 340, operation=Operation.SCORES, axis=Axis.NODE, bytes=14)
            writer.record(Kind.COLLECTIVE, 340, 350, operation=Operation.COMBINE_WEIGHTS, axis=Axis.EXPERT_DP, bytes=15)
    write_index(tmp_path, 4, description)
    said = otf2_archive.save(hpcpar.trace.open(tmp_path), tmp_path / "a")
    assert said == f"33 events of 3 ranks are in {tmp_path / 'a' / 'trace.otf2'}"
    read = archive.read(tmp_path / "a")
    assert read.locations["rank 2"] == "rank 2 on node1"
    assert read.locations["rank 1"] == "rank 1 on node0: trace.00001.h5 is missing"
    mine = {where: (start, end, name) for where, start, end, name, _ in read.regions if where.startswith("rank 2, ")}
    assert mine == {
        "rank 2, calls 2": (100, 300, "update"),
        "rank 2, copies": (100, 300, "copy to_host"),
        "rank 2, copies 2": (101, 301, "copy to_host"),
    }
    inside = [(start, end, name, a.get("microbatch")) for where, start, end, name, a in read.regions if where == "rank 2"]
    assert inside == [(50, 150, "wait allreduce", None), (0, 200, "F", 3)]
    assert [c for c in read.one_sided if c[0] == "rank 3"] == [("rank 3", 120, 130, "put", 2, 8), ("rank 3", 120, 140, "get", 2, 9)]
    everyone = [f"rank {r}" for r in range(4)]
    assert [c for c in read.collectives if c[0] == "rank 3"] == [
        ("rank 3", 200, 220, "REDUCE_SCATTER", ["rank 2", "rank 3"], 12),
        ("rank 3", 220, 230, "ALLTOALLV", ["rank 2", "rank 3"], 13),
        ("rank 3", 230, 240, "ALLGATHERV", everyone, 14),
        ("rank 3", 240, 250, "ALLREDUCE", ["rank 3"], 15),
    ]


def test_the_copies_of_a_stage_take_part_together(tmp_path):
    description = {"config": {"plan": {"pp": 4, "microbatches": 4, "schedule": "chimera"}}}
    holders = generate("chimera", stages=4, microbatches=4).holders(1)
    for rank in range(4):
        with Writer(tmp_path, rank, 4, description) as writer:
            if rank in holders:
                writer.record(Kind.COLLECTIVE, 1, 2, stage=1, operation=Operation.ALLREDUCE, axis=Axis.DP, bytes=8)
    write_index(tmp_path, 4, description)
    otf2_archive.save(hpcpar.trace.open(tmp_path), tmp_path / "a")
    everyone = [f"rank {r}" for r in sorted(holders)]
    assert [c[4] for c in archive.read(tmp_path / "a").collectives] == [everyone] * 2


@pytest.mark.skipif(not shutil.which("otf2-print"), reason="otf2-print is not installed")
def test_an_independent_reader_counts_the_same(tmp_path):
    drawn = ([[], [(Kind.B, (1, 9), 0, 1, Operation.NONE)], []], [(0, 1, ((0, 3), (1, 4)), Operation.ACTIVATION, 5)] * 2)
    otf2_archive.save(made.write(tmp_path, drawn), tmp_path / "a")
    done = subprocess.run(["otf2-print", tmp_path / "a" / "trace.otf2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    counts = Counter(re.findall(r"^([A-Z_]+) +\d+ +\d+ ", done.stdout, re.MULTILINE))
    assert counts == {"ENTER": 1, "LEAVE": 1, "MPI_ISEND": 2, "MPI_ISEND_COMPLETE": 2, "MPI_IRECV_REQUEST": 2, "MPI_IRECV": 2, "METRIC": 6}


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    trace = made.write(tmp_path / "run", ([[], [], []], []))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").touch()
    with pytest.raises(PlanError, match="holds something already; name a folder that is new or empty"):
        otf2_archive.save(trace, tmp_path / "a")
    with pytest.raises(PlanError, match="cannot write"):
        otf2_archive.save(trace, tmp_path / "a" / "mine" / "b")
    monkeypatch.setitem(sys.modules, "otf2", None)
    with pytest.raises(PlanError, match=r"needs its package; pip install 'hpcpar\[exports\]'"):
        otf2_archive.save(trace, tmp_path / "b")
