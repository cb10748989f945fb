"""The pipeline's bubble as measured, as the closed form gives it, and as the schedule's clock gives it with the measured mean times.

    rank 0  F F F . . . . . B B B        cost   the longest span of one rank, first start to last end of its F, I, W and B
    rank 1    F B F B F B                work   the longest time that one rank spends in them
            |<---- cost ---->|           idle/total = (cost - work) / cost        idle/ideal = (cost - work) / work

Two conventions are in use; both are given, always labelled. A synchronous schedule has a bubble a step: cost and work are means over the
measured steps. An asynchronous one has none; its cost and work span all measured steps. Recompute is work, and so is what a rank waits for
inside a compute action: it is no bubble of the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.steps import Steps, training
from hpcpar.analyse.throughput import config
from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES, Times, clock, generate, lower
from hpcpar.schedule.closed_forms import bubble_ideal, bubble_total
from hpcpar.schedule.family import Asynchronous
from hpcpar.trace import Trace
from hpcpar.trace.schema import PIPELINE, Kind


def bubble(trace: Trace, found: Steps) -> dict[str, Any] | None:
    """cost_s, work_s, bubble_total, bubble_ideal as measured, and the same under `clock` and `closed_form`, None where there is none.

    None for a trace without compute in its measured steps.
    """
    described = config(trace)
    synchronous = described is None or not isinstance(SCHEDULES.get(described.plan.schedule), Asynchronous)
    measured = found.numbers[found.measured]
    costs, works = [], []
    means = StageMeans()
    for rank in trace.present:
        events = training(trace.events(rank))
        events = events[np.isin(events["kind"], PIPELINE) & np.isin(events["step"], measured)]
        means.add(events)
        if len(events):
            cost, work = _spans(events, measured if synchronous else None)
            costs.append(cost)
            works.append(work)
    if not costs:
        return None
    out = _ratios(float(np.max(costs, axis=0).mean()) / 1e9, float(np.max(works, axis=0).mean()) / 1e9)
    predicted = _predicted(described, means) if described and synchronous and not trace.missing else None
    return {**out, "closed_form": _closed(described) if described and synchronous else None, "clock": predicted}


def mean_times(trace: Trace, found: Steps) -> Times:
    """F, I and W of a microbatch on a rank, means over all ranks and measured steps in s; halves of B where it is not split, and all 1
    where nothing was measured."""
    total = dict.fromkeys((Kind.F, Kind.I, Kind.W, Kind.B), 0)
    measured = found.numbers[found.measured]
    forwards = 0
    for rank in trace.present:
        events = training(trace.events(rank))
        events = events[np.isin(events["step"], measured)]
        forwards += int(np.count_nonzero(events["kind"] == Kind.F))
        for kind in total:
            total[kind] += int((events["end"] - events["start"])[events["kind"] == kind].sum())
    if not forwards or not total[Kind.F]:
        return Times()
    half = total[Kind.B] / 2
    f, i, w = (t / forwards / 1e9 for t in (total[Kind.F], total[Kind.I] + half, total[Kind.W] + half))
    return Times(F=f, I=i, W=w)


class StageMeans:
    """Mean times in s of F, I, W and B by stage."""

    def __init__(self) -> None:
        self._total: dict[tuple[int, int], list[float]] = {}

    def add(self, events: np.ndarray) -> None:
        """Take in events of any kinds and stages."""
        for kind in (Kind.F, Kind.I, Kind.W, Kind.B):
            chosen = events[events["kind"] == kind]
            for stage in np.unique(chosen["stage"]).tolist():
                mine = chosen[chosen["stage"] == stage]
                at = self._total.setdefault((kind, stage), [0.0, 0])
                at[0] += float((mine["end"] - mine["start"]).sum()) / 1e9
                at[1] += len(mine)

    def of(self, kind: Kind, stages: int) -> list[float] | None:
        """The mean of a kind on each stage; None if a stage has none."""
        found = [self._total.get((kind, s)) for s in range(stages)]
        return None if None in found else [t / n for t, n in found if n]  # type: ignore[misc]


def _spans(events: np.ndarray, steps: np.ndarray | None) -> tuple[Sequence[float], Sequence[float]]:
    """Span and busy time in ns of a rank in each step; all of it as one where steps is None."""
    if steps is None:
        return [float(events["end"].max() - events["start"].min())], [float(spans.length(spans.of(events)))]
    found, which = np.unique(events["step"], return_inverse=True)
    place = np.searchsorted(steps, found)
    cost, work = np.zeros(len(steps)), np.zeros(len(steps))
    first, busy = spans.by_group(spans.of(events), which, len(found))
    cost[place], work[place] = first[:, 1] - first[:, 0], busy
    return cost.tolist(), work.tolist()


def _ratios(cost_s: float, work_s: float) -> dict[str, Any]:
    idle = cost_s - work_s
    return {
        "cost_s": cost_s,
        "work_s": work_s,
        "bubble_total": idle / cost_s if cost_s else None,
        "bubble_ideal": idle / work_s if work_s else None,
    }


def _predicted(described: Config, means: StageMeans) -> dict[str, Any] | None:
    """The clock of the plan's schedule with mean times by stage and messages that take no time."""
    p = described.plan
    try:
        schedule = generate(p.schedule, stages=p.pp, microbatches=p.microbatches, chunks=p.chunks, accumulate=p.accumulate)
    except PlanError:  # a plan of another version, or one that this one does not know
        return None
    f, i, w, b = (means.of(kind, schedule.stages) for kind in (Kind.F, Kind.I, Kind.W, Kind.B))
    if f is None or (b is None and (i is None or w is None)):
        return None
    i, w = (i, w) if i is not None and w is not None else (b, [0.0] * schedule.stages)
    timing = clock(lower(schedule), Times(F=f, I=i, W=w))  # type: ignore[arg-type]
    return _ratios(timing.cost, timing.work)


def _closed(described: Config) -> dict[str, Any] | None:
    """The closed form of the plan, for the times of train.emulate, or F = I = W where there are none; None outside its domain.

    Each of `accumulate` repetitions has the whole bubble where the first rank starts first and ends last; elsewhere no form is known.
    """
    p, emulate = described.plan, described.train.emulate
    if p.accumulate > 1 and p.schedule not in ("naive", "gpipe", "1f1b", "interleaved"):
        return None
    times = (emulate.F, emulate.I, emulate.W) if emulate and not emulate.slow and emulate.F else (1.0, 1.0, 1.0)
    total, ideal = (form(p.schedule, p.pp, p.microbatches, p.chunks, *times) for form in (bubble_total, bubble_ideal))
    return None if total is None else {"bubble_total": total, "bubble_ideal": ideal}
