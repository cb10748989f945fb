"""When each step ran: its window on the clock of the run.

    rank 0  |-- step 1 --| |-- step 2 --|  evaluation  |-- step 3 --|
    rank 1    |-- step 1 --||-- step 2 --| evaluation    |-- step 3 --|
    window  [      1       ][    2       ]             [      3      ]

A step begins with its first event on any rank or, where ranks already work on it while others finish the one before, when that one ends.
It ends with its last event on any rank. Evaluation, checkpoints and what follows them up to the next step belong to no step. Only steps
that all readable ranks have are counted, and means leave out the warm-up: the first of them, and the first after each resume.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.trace import Trace
from hpcpar.trace.schema import PIPELINE, Kind

STEP_COMPUTE = (*PIPELINE, Kind.UPDATE)


@dataclass(frozen=True)
class Steps:
    """The steps of a run: numbers, first start and last end of their events and windows, all (n,); times in ns."""

    numbers: np.ndarray
    first: np.ndarray
    last: np.ndarray
    windows: np.ndarray  # (n, 2)
    resumed: frozenset[int] = field(default=frozenset())  # the first step of each session but the first

    @property
    def measured(self) -> np.ndarray:
        """(n,) bool: all but the first of each session; a run of nothing but these has them all."""
        out = np.arange(len(self.numbers)) > 0
        out &= ~np.isin(self.numbers, list(self.resumed))
        return out if out.any() else ~out

    @property
    def seconds(self) -> np.ndarray:
        """The length of each window (n,), in s."""
        return (self.windows[:, 1] - self.windows[:, 0]) / 1e9


def training(events: np.ndarray) -> np.ndarray:
    """The events of a rank that belong to steps.

    A step is over where the evaluation or the checkpoint that bears its number begins; messages posted between its last compute event and
    that are for the evaluation.
    """
    inside = events["step"] >= 1
    if not np.isin(events["kind"], (Kind.EVALUATE, Kind.CHECKPOINT)).any():
        return events if inside.all() else events[inside]
    apart = events[np.isin(events["kind"], (Kind.EVALUATE, Kind.CHECKPOINT))]
    for number in np.unique(apart["step"]).tolist():
        over = apart["start"][apart["step"] == number].min()
        mine = events["step"] == number
        compute = mine & np.isin(events["kind"], STEP_COMPUTE) & (events["start"] < over)
        done = events["end"][compute].max(initial=np.iinfo(np.int64).min)
        inside &= ~mine | ((events["start"] < over) & ((events["peer"] < 0) | (events["start"] < done)))
    return events[inside]


def steps(trace: Trace) -> Steps:
    """The steps that all readable ranks have, ascending."""
    bounds: dict[int, list[tuple[int, int]]] = {}
    resumed: set[int] = set()
    for rank in trace.present:
        events = trace.events(rank)
        for begin in trace.sessions(rank)["events"][1:].tolist():
            after = events["step"][begin:]
            resumed |= {int(n) for n in after[after >= 1][:1]}
        events = training(events)
        events = events[np.argsort(events["step"], kind="stable")]
        numbers, at = np.unique(events["step"], return_index=True)
        if len(numbers):
            first, last = np.minimum.reduceat(events["start"], at), np.maximum.reduceat(events["end"], at)
            for n, f, e in zip(numbers.tolist(), first.tolist(), last.tolist(), strict=True):
                bounds.setdefault(n, []).append((f, e))
    whole = sorted(n for n, found in bounds.items() if len(found) == len(trace.present))
    first = np.array([min(f for f, _ in bounds[n]) for n in whole], np.int64)
    last = np.array([max(e for _, e in bounds[n]) for n in whole], np.int64)
    windows = np.stack([first, last], axis=1)
    if len(whole):
        windows[1:, 0] = np.maximum(first[1:], np.maximum.accumulate(last)[:-1])
        windows[:, 1] = np.maximum(windows[:, 0], last)
    return Steps(np.array(whole, np.int64), first, last, windows, frozenset(resumed))


def chosen_steps(trace: Trace, found: Steps, wanted: str | None = None) -> tuple[int, int]:
    """The first and last number of "N" or "N:M"; the middle step without a choice.

    Raises PlanError for what is no such word and for a step that not all readable ranks have.
    """
    numbers = found.numbers.tolist()
    if not numbers:
        raise PlanError(f"{trace.folder} has no step that all ranks have; there is nothing to draw")
    if wanted is None:
        return (numbers[len(numbers) // 2],) * 2
    try:
        first, last = ([int(x) for x in wanted.split(":")] * 2)[:2]
    except ValueError:
        raise PlanError(f"--step {wanted}: write a step or a range of them, as in 12 or 12:14") from None
    for number in (first, last):
        if number not in numbers:
            raise PlanError(f"step {number} is not in {trace.folder}, which has {numbers[0]} to {numbers[-1]}; choose one of them")
    if last < first:
        raise PlanError(f"--step {wanted} ends before it begins; write the smaller one first")
    return first, last


def of_steps(trace: Trace, found: Steps, first: int, last: int) -> tuple[int, int, dict[int, np.ndarray]]:
    """Steps `first` to `last`, which all readable ranks have: first start, last end and what ran in between on each of those ranks."""
    numbers = found.numbers.tolist()
    start, end = int(found.first[numbers.index(first)]), int(found.last[numbers.index(first) : numbers.index(last) + 1].max())
    lanes = {}
    for rank in trace.present:
        events = trace.events(rank) if first < last else training(trace.events(rank))
        lanes[rank] = events[(events["end"] > start) & (events["start"] < end)]
    return start, end, lanes


def summary(found: Steps) -> dict[str, Any]:
    """Count, numbers and times of the steps in s; `warm_up` is the first step, where the mean leaves it out, `resumed` the others that it
    leaves out, each the first after a resume."""
    if not len(found.numbers):
        return {"count": 0}
    taken = found.seconds[found.measured]
    return {
        "count": len(found.numbers),
        "first": int(found.numbers[0]),
        "last": int(found.numbers[-1]),
        "warm_up": None if found.measured[0] else int(found.numbers[0]),
        "resumed": [n for n in found.numbers[~found.measured].tolist() if n != found.numbers[0]],
        "mean_s": float(taken.mean()),
        "min_s": float(taken.min()),
        "max_s": float(taken.max()),
        "std_s": float(taken.std()),
    }
