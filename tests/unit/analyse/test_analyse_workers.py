"""Workers by their own clocks: rates, waits and staleness of traces written by hand."""

from __future__ import annotations

import pytest
from hand_made import collective, message, pipe, write

import hpcpar.trace
from hpcpar.analyse.report import report
from hpcpar.analyse.table import tables
from hpcpar.analyse.workers import workers
from hpcpar.trace.schema import Axis, Kind, Operation


def own(operation, peer=-1):
    return {"operation": operation, "axis": Axis.DP, "peer": peer}


# rank 0: steps of 12, 10, 10 and 10 ms, then a drain of 60 ms; rank 1: steps of 30 ms, of which it waits 6 for a clock and 3 for a push
FAST = [(step, Kind.B, 10 * step, 10 * step + 10) for step in (1, 2, 3, 4)]
FAST += [
    (4, Kind.WAIT, 50, 110, own(Operation.BARRIER)),
    (4, Kind.RECEIVE, 50, 110, own(Operation.BARRIER, 1)),
    (4, Kind.RECEIVE, 110, 115, own(Operation.PULL, 1)),
    (4, Kind.WAIT, 115, 116, own(Operation.BARRIER)),
    (4, Kind.UPDATE, 100, 101, own(Operation.PUSH, 1)),
    *(("metric", step, "staleness", value) for step, value in ((1, 0.0), (2, 2.0), (3, 3.0), (4, 0.0))),
]
SLOW = [(step, Kind.B, 30 * step, 30 * step + 21) for step in (1, 2, 3)]
SLOW += [(step, Kind.WAIT, 30 * step + 21, 30 * step + 24, own(Operation.PUSH)) for step in (1, 2, 3)]
SLOW += [(step, Kind.WAIT, 30 * step + 24, 30 * step + 30, own(Operation.CLOCK)) for step in (1, 2, 3)]


def test_rates_waits_and_staleness_of_each_worker(tmp_path):
    fast, slow = workers(hpcpar.trace.open(write(tmp_path, [FAST, SLOW])))
    assert fast == {
        "rank": 0,
        "steps": 4,
        "steps_per_s": pytest.approx(100.0),
        "wait": 0.0,
        "wait_clock": 0.0,
        "staleness_mean": pytest.approx(5 / 3),
        "staleness_max": 3.0,
    }
    assert (slow["steps"], slow["staleness_mean"], slow["staleness_max"]) == (3, None, None)
    assert [slow[k] for k in ("steps_per_s", "wait", "wait_clock")] == pytest.approx([1 / 0.03, 0.3, 0.2])


def test_the_table_stands_only_where_workers_pull(tmp_path):
    found = report(hpcpar.trace.open(write(tmp_path / "stale", [FAST, SLOW])))
    assert "workers, each by its own clock" in tables(found)
    plain = report(hpcpar.trace.open(pipe(tmp_path / "pipe")))
    assert "workers, each by its own clock" not in tables(plain) and len(plain["workers"]) == 2


def test_a_rank_without_steps_has_no_row(tmp_path):
    ranks = [[(0, Kind.WAIT, 0, 1, message(1, 2))], [(1, Kind.F, 0, 1), (1, Kind.COLLECTIVE, 0, 1, collective(8))]]
    assert [row["rank"] for row in workers(hpcpar.trace.open(write(tmp_path, ranks)))] == [1]
