"""Events of a rank in lanes whose slices nest or are disjoint, as Perfetto and OTF2 demand; others would vanish or be cut.

receives    |===r1===|      |==r3==|         messages overlap: as many lanes as are needed, none nests in another
receives 2     |=====r2=====|
compute     |--B---------------| |-U-|       calls nest: one lane
               |-RECOMPUTE-|
waits                              |-w-|
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hpcpar.trace.schema import COMPUTE, Kind

NESTS, DISJOINT = True, False
Table = Mapping[str, tuple[tuple[int, ...], bool]]  # what a lane holds -> kinds, whether they nest
LANES: Table = {  # from top to bottom
    "receives": ((Kind.RECEIVE,), DISJOINT),
    "compute": (COMPUTE, NESTS),
    "waits": ((Kind.WAIT,), NESTS),
    "collectives": ((Kind.COLLECTIVE,), DISJOINT),
    "sends": ((Kind.SEND,), DISJOINT),
    "copies": ((Kind.COPY,), DISJOINT),
    "files": ((Kind.IO, Kind.CHECKPOINT), NESTS),
}


@dataclass(frozen=True)
class Lane:
    """One lane: what it holds, which of several such lanes it is (from 1), and its events (rows (n,)) in the order in which they begin."""

    holds: str
    number: int
    rows: np.ndarray

    @property
    def name(self) -> str:
        """`sends`, `sends 2`, …"""
        return self.holds if self.number == 1 else f"{self.holds} {self.number}"


def lanes(events: np.ndarray, table: Table = LANES) -> list[Lane]:
    """Every event (n,) EVENT of a rank in exactly one lane; kinds that are not in the table are in lanes named `other`."""
    known = {int(kind) for kinds, _ in table.values() for kind in kinds}
    table = {**table, "other": (tuple(sorted(set(np.unique(events["kind"]).tolist()) - known)), NESTS)}
    out = []
    for holds, (kinds, nests) in table.items():
        rows = np.flatnonzero(np.isin(events["kind"], kinds))
        start, end = times(events[rows])
        order = np.lexsort((-end if nests else end, start))
        rows, start, end = rows[order], start[order], end[order]
        number = nested(start, end) if nests else apart(start, end)
        out += [Lane(holds, n + 1, rows[number == n]) for n in range(int(number.max(initial=-1)) + 1)]
    return out


def times(events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end (n,) in ns; none ends before it starts."""
    return events["start"].astype(np.int64), np.maximum(events["start"], events["end"]).astype(np.int64)


def apart(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The lane (n,), from 0, of each slice so that no two of a lane overlap; slices in order of start.

    Each takes the lowest lane that is free: interval partitioning, with as few lanes as overlap at one time.
    """
    lane = np.zeros(len(start), np.int64)
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    for i, (s, e) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (e, int(lane[i])))
    return lane


def nested(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The lane (n,), from 0, of each slice so that any two of a lane nest or are disjoint; slices in order of start, longest first."""
    lane = np.zeros(len(start), np.int64)
    stacks: list[list[int]] = []  # of each lane: the ends of the slices that are open
    for i, (s, e) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        n = next((n for n, stack in enumerate(stacks) if _fits(stack, s, e)), len(stacks))
        if n == len(stacks):
            stacks.append([])
        stacks[n].append(e)
        lane[i] = n
    return lane


def _fits(stack: list[int], start: int, end: int) -> bool:
    """Close what has ended by the start; whether the slice then lies inside what is open."""
    while stack and stack[-1] <= start:
        stack.pop()
    return not stack or end <= stack[-1]


def edges(start: np.ndarray, end: np.ndarray) -> Iterator[tuple[int, bool, int]]:
    """(time, whether it begins, which slice) of the begins and ends of a lane, in time, each end closing what began last.

    Slices come in the order in which they begin, the outer first.
    """
    stack: list[tuple[int, int]] = []  # (end, slice)
    for i, (s, e) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while stack and stack[-1][0] <= s:
            time, inner = stack.pop()
            yield time, False, inner
        yield s, True, i
        stack.append((e, i))
    while stack:
        time, inner = stack.pop()
        yield time, False, inner
