"""Traces of many ranks: the numbers are right, and memory grows with what is kept, not with the measures."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from wide_trace import STAGES, TICK, step_of, write_wide

import hpcpar.trace
from hpcpar.analyse import spans
from hpcpar.analyse.volumes import distinct
from hpcpar.trace import schema

ROOT = Path(__file__).parents[3]
ANALYSE = """
import resource, sys, json
from hpcpar.cli.main import main
code = main(["analyse", sys.argv[1], "--json"])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"code": code, "bytes": used.ru_maxrss * 1024, "cpu_s": used.ru_utime + used.ru_stime}), file=sys.stderr)
"""


def analysed(folder):
    """What `hpcpar analyse --json` says of a folder, and what that took, on one core."""
    done = subprocess.run([sys.executable, "-c", ANALYSE, str(folder)], capture_output=True, text=True, cwd=ROOT, check=True)
    used = json.loads(done.stderr.splitlines()[-1])
    assert used["code"] == 0
    return json.loads(done.stdout), used


def expect(found, ranks, steps):
    """Every number that the trace was made to have, clocks seconds apart notwithstanding."""
    messages = 2 * (STAGES - 1) * 8 * steps * (ranks // STAGES)
    assert found["clocks"]["messages"] == messages and found["clocks"]["alone"] == {"sends": 0, "receives": 0, "sizes": 0}
    assert found["clocks"]["left_s"] == 0 and found["clocks"]["bound_s"] == 5e-7 and found["clocks"]["meetings"] == steps
    assert found["run"]["gaps"] == [] and found["steps"]["count"] == steps and len(found["shares"]) == ranks
    rows = {(r["kind"], r["operation"]): r for r in found["volumes"]["operations"]}
    assert rows["send", "activation"]["calls"] == rows["receive", "gradient"]["calls"] == messages // 2
    assert rows["collective", "allreduce"]["bytes"] == 4000 * ranks * steps
    assert found["steps"]["mean_s"] == pytest.approx(47 * TICK / 1e9, rel=1e-3)
    assert [row["stash"] for row in found["memory"]] == [1000 + r for r in range(ranks)]
    assert found["bubble"]["work_s"] == pytest.approx(16 * (TICK - 500) / 1e9, rel=1e-3)


def test_64_ranks_are_right_and_find_room(tmp_path):
    steps = write_wide(tmp_path, 64, 5000)
    found, used = analysed(tmp_path)
    expect(found, 64, steps)
    write_wide(tmp_path / "small", 4, 100)
    _, least = analysed(tmp_path / "small")
    events = 64 * 5000 * schema.EVENT.itemsize
    assert used["bytes"] - least["bytes"] < 6 * events + (64 << 20)


def test_events_that_find_no_room_are_read_again(tmp_path, monkeypatch):
    write_wide(tmp_path, 8, 500)
    whole = hpcpar.trace.open(tmp_path)
    monkeypatch.setattr("hpcpar.trace.reader.KEPT_BYTES", 3 * 500 * schema.EVENT.itemsize)
    trace = hpcpar.trace.open(tmp_path)
    for _ in range(2):
        for rank in range(8):
            assert np.array_equal(trace.events(rank), whole.events(rank))
            assert sum(e.nbytes for e in trace._read.kept.values()) <= 3 * 500 * schema.EVENT.itemsize + 500 * schema.EVENT.itemsize
    assert np.array_equal(trace.messages().pairs, whole.messages().pairs)


@pytest.mark.long
def test_512_ranks_of_20000_events_find_room_in_2_gb(tmp_path, capsys):
    steps = write_wide(tmp_path, 512, 20_000)
    found, used = analysed(tmp_path)
    expect(found, 512, steps)
    assert found["efficiency"]["why"] is None and found["critical_path"]["parts"]["wait"] == pytest.approx(0, abs=1e-12)
    assert used["bytes"] < 2e9
    with capsys.disabled():  # what 30 s are enough for depends on the machine: said, not asserted
        print(f"\n512 ranks x 20 000 events: {used['cpu_s']:.1f} s of one core, {used['bytes'] / 1e9:.2f} GB")


def test_a_message_finds_its_own_among_many(tmp_path, monkeypatch):
    """Whatever is matched at once."""
    write_wide(tmp_path, 8, 300)
    pairs = hpcpar.trace.open(tmp_path).messages().pairs
    monkeypatch.setattr("hpcpar.trace.messages.AT_ONCE", 50)
    assert np.array_equal(hpcpar.trace.open(tmp_path).messages().pairs, pairs)
    assert len(pairs) == 8 // STAGES * 48 * (300 // 49) and len(step_of(0)[0]) == 35


# the arithmetic of many at once


def test_by_group_is_the_union_of_each():
    draw = np.random.default_rng(1)
    start = draw.integers(-50, 10**6, 400)
    found = np.stack([start, start + draw.integers(0, 40_000, 400)], axis=1)
    group = draw.integers(0, 7, 400)
    reach, busy = spans.by_group(found, group, 7)
    for g in range(7):
        mine = found[group == g]
        assert reach[g].tolist() == [mine[:, 0].min(), mine[:, 1].max()] and busy[g] == spans.length(mine)


def test_distinct_rows_are_those_of_numpy():
    keys = np.random.default_rng(2).integers(-3, 5, (300, 3))
    rows, which = distinct(keys)
    want, there = np.unique(keys, axis=0, return_inverse=True)
    assert np.array_equal(rows, want) and np.array_equal(which, there.reshape(-1))
