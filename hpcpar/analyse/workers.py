"""What each rank came to by its own clock: where workers wait for each other little or not at all, steps have no common window.

    rank 0   |- 1 -||- 2 -||- 3 -| . drain . |- 4 -|        3 steps in their own time: the drain counts for nobody
    rank 1   |---- 1 ----||---- 2 ----||---- 3 ----|

A step of a rank lasts from its first event to its last one, or to where the rank begins to wait at a drain. The first step is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.steps import training
from hpcpar.trace import Trace
from hpcpar.trace.schema import Kind, Operation


def workers(trace: Trace) -> list[dict[str, Any]]:
    """For each readable rank: `rank`, `steps`, `steps_per_s`, the shares of its time that it waited, in all (`wait`) and for the clocks of
    other workers (`wait_clock`), and the staleness of its pulls, `staleness_mean` and `staleness_max` (None where it pulls nothing)."""
    return [row for rank in trace.present if (row := _of_rank(trace, rank)) is not None]


def _of_rank(trace: Trace, rank: int) -> dict[str, Any] | None:
    events = training(trace.events(rank))
    events = events[~((events["kind"] == Kind.UPDATE) & (events["operation"] == Operation.PUSH))]  # of the shard, for any worker
    numbers, which = np.unique(events["step"], return_inverse=True)
    ends = _drains(events)
    order = np.argsort(which, kind="stable")
    at = np.searchsorted(which[order], np.arange(len(numbers)))
    bounds = (reach.reduceat(events[name][order], at) for reach, name in ((np.minimum, "start"), (np.maximum, "end")) if len(numbers))
    windows = [(first, ends.get(n, end)) for n, first, end in zip(numbers.tolist(), *(b.tolist() for b in bounds), strict=True)]
    windows = windows[1:] if len(windows) > 1 else windows
    if not windows:
        return None
    own = np.array(windows, np.int64)
    total = spans.length(own)
    waits = events[events["kind"] == Kind.WAIT]
    clocks = waits[waits["operation"] == Operation.CLOCK]
    metrics = trace.metrics(rank)
    pulls = metrics[(metrics["name"] == b"staleness") & ~np.isin(metrics["step"], list(ends))]["value"]
    return {
        "rank": rank,
        "steps": len(numbers),
        "steps_per_s": len(own) / total * 1e9 if total else None,
        "wait": spans.common(spans.of(waits), own) / total if total else None,
        "wait_clock": spans.common(spans.of(clocks), own) / total if total else None,
        "staleness_mean": float(pulls.mean()) if len(pulls) else None,
        "staleness_max": float(pulls.max()) if len(pulls) else None,
    }


def _drains(events: np.ndarray) -> dict[int, int]:
    """Where the rank begins to wait at a drain, by step."""
    drained = events[(events["kind"] == Kind.WAIT) & (events["operation"] == Operation.BARRIER)]
    steps, which = np.unique(drained["step"], return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, which, drained["start"])
    return dict(zip(steps.tolist(), first.tolist(), strict=True))
