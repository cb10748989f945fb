"""When each step ran: its window on the clock of the run.

    rank 0  |-- step 1 --| |-- step 2 --|  evaluation  |-- step 3 --|
    rank 1    |-- step 1 --||-- step 2 --| evaluation    |-- step 3 --|
    window  [      1       ][    2       ]             [      3      ]

A step begins with its first event on any rank or, where ranks already work on it while others finish the one before, when that one ends.
It ends with its last event on any rank. Evaluation, checkpoints and what follows them up to the next step belong to no step. Only steps
that all readable ranks have are counted, and means leave out the first of them, the warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
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

    @property
    def measured(self) -> np.ndarray:
        """(n,) bool: all but the first; a run of one step has only that."""
        return np.arange(len(self.numbers)) > (0 if len(self.numbers) > 1 else -1)

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
    for rank in trace.present:
        events = training(trace.events(rank))
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
    return Steps(np.array(whole, np.int64), first, last, windows)


def of_step(trace: Trace, found: Steps, number: int | None = None) -> tuple[int, int, int, dict[int, np.ndarray]]:
    """One step, the middle one without a number: its number, first start, last end and what ran in between on each readable rank.

    Raises PlanError for a step that not all readable ranks have.
    """
    numbers = found.numbers.tolist()
    if not numbers:
        raise PlanError(f"{trace.folder} has no step that all ranks have; there is nothing to draw")
    number = numbers[len(numbers) // 2] if number is None else number
    if number not in numbers:
        raise PlanError(f"step {number} is not in {trace.folder}, which has {numbers[0]} to {numbers[-1]}; choose one of them")
    first, last = int(found.first[numbers.index(number)]), int(found.last[numbers.index(number)])
    lanes = {}
    for rank in trace.present:
        events = training(trace.events(rank))
        lanes[rank] = events[(events["end"] > first) & (events["start"] < last)]
    return number, first, last, lanes


def summary(found: Steps) -> dict[str, Any]:
    """Count, numbers and times of the steps in s; `warm_up` is the step that the mean leaves out, None where it is the only one."""
    if not len(found.numbers):
        return {"count": 0}
    taken = found.seconds[found.measured]
    return {
        "count": len(found.numbers),
        "first": int(found.numbers[0]),
        "last": int(found.numbers[-1]),
        "warm_up": int(found.numbers[0]) if len(found.numbers) > 1 else None,
        "mean_s": float(taken.mean()),
        "min_s": float(taken.min()),
        "max_s": float(taken.max()),
        "std_s": float(taken.std()),
    }
