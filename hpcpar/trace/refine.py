"""Clocks put right by the messages themselves.

    offset of rank r     v   v  v    v           v  upper: r's message was received before r had sent it, unless r's offset is below
       |            _____________________        the line with most room between both
       |       ^  ^    ^   ^    ^                ^  lower: r received before the other had sent, unless r's offset is above

A line: Duda, Harrus, Haddad and Bernard, Estimating global time in distributed systems, ICDCS 1987 (convex hulls): the slope is the drift.
Messages in both directions are needed. What a line leaves is moved as in the controlled logical clock with forward and backward
amortisation (Becker, Rabenseifner and Wolf, Parallel Computing 35 (2009) 595): an end that comes too early is moved to where it may be,
and the times around it by less and less, at STRETCH per unit of time, so that the order of a rank's own events never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.trace.clocks import Constraints, Key

STRETCH = 0.01
STEEPEST = 0.01  # drift; a quartz has 1e-4 at worst
ROUNDS = 500
HALVINGS = 200


@dataclass(frozen=True)
class Line:
    """offset + drift (t - start), in ns; `room_ns`: how far it may be wrong either way."""

    start: int
    offset: float
    drift: float
    room_ns: int

    def apply(self, times: np.ndarray) -> None:
        """Add it to times (n,) int64 in place."""
        times += np.rint(self.offset + self.drift * (times - self.start)).astype(np.int64)


@dataclass
class Moves:
    """The least moves that leave no end before `at` + `by`, steeper than STRETCH nowhere: max over k of by_k - STRETCH |t - at_k|."""

    at: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    by: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, at: np.ndarray, by: np.ndarray) -> None:
        """Times (n,) and by how much they must be moved at least."""
        at, by = np.append(self.at, at), np.append(self.by, by)
        order = np.lexsort((-by, at))
        at, by = at[order], by[order]
        fresh = np.append(True, at[1:] != at[:-1])
        self.at, self.by = at[fresh], by[fresh]

    def apply(self, times: np.ndarray) -> None:
        """Move times (n,) int64 in place."""
        if not len(self.at):
            return
        at, t = (self.at - self.at[0]).astype(np.float64), (times - self.at[0]).astype(np.float64)
        rising = np.maximum.accumulate(self.by + STRETCH * at)
        falling = np.maximum.accumulate((self.by - STRETCH * at)[::-1])[::-1]
        after = np.searchsorted(at, t, side="left")  # the first move not before t
        none = -np.inf
        left = np.where(after > 0, rising[np.maximum(after - 1, 0)] - STRETCH * t, none)
        right = np.where(after < len(at), falling[np.minimum(after, len(at) - 1)] + STRETCH * t, none)
        times += np.ceil(np.maximum(np.maximum(left, right), 0.0) - 1e-6).astype(np.int64)


def lines(held: Constraints) -> dict[int, int]:
    """Give a line to the ranks whose messages with the others their points contradict; returns {rank: room in ns}.

    Ranks that agree among each other are moved together. Raises PlanError for some without messages in both directions.
    """
    out: dict[int, int] = {}
    for session in sorted({s for s, _ in held.rows}):
        right, *apart = _parts(held, session)
        while apart:
            found = [_bounds(held, session, part, right) for part in apart]
            best = max(range(len(apart)), key=lambda i: (min(map(len, found[i])), -i))
            part, (lower, upper) = apart.pop(best), found[best]
            if not len(lower) or not len(upper):
                count = min(len(held.corrections[session, rank].points) for rank in part)
                raise PlanError(
                    f"{held.worst()}; of rank {min(part)} there are {count} clock points, and to tell its clock {len(lower)} messages "
                    f"to it and {len(upper)} from it, where both ways are needed: no time of it can be believed"
                )
            line = fitted(lower, upper)
            for rank in part:
                held.corrections[session, rank].line = line
                at = held.base[held.rows[session, rank]]
                line.apply(at)
                held.base[held.rows[session, rank]] = held.times[held.rows[session, rank]] = at
                out[rank] = max(out.get(rank, 0), line.room_ns)
            right |= part
    return out


def _parts(held: Constraints, session: int) -> list[set[int]]:
    """Ranks whose clocks agree, as far as what they have to do with each other says; first those that most points speak for."""
    ranks = sorted(r for s, r in held.rows if s == session)
    head = {r: r for r in ranks}

    def root(r: int) -> int:
        while head[r] != r:
            head[r] = head[head[r]]
            r = head[r]
        return r

    _, _, before, after = held.ends(held.times)
    here = held.session[before] == session
    pairs = np.stack([held.owner[before], held.owner[after]], axis=1)
    pairs.sort(axis=1)
    beyond = held.late() > held.doubt()
    odd = set(map(tuple, np.unique(pairs[here & beyond], axis=0).tolist()))
    talk = here & (np.arange(len(here)) < held.n)
    for a, b in [*map(tuple, np.unique(pairs[talk], axis=0).tolist()), *_met(held, session)]:
        if (a, b) not in odd:
            head[root(a)] = root(b)
    parts: dict[int, set[int]] = {}
    for r in ranks:
        parts.setdefault(root(r), set()).add(r)
    points = {r: len(held.corrections[session, r].points) > 0 for r in ranks}
    return sorted(parts.values(), key=lambda p: (-sum(points[r] for r in p), -len(p), min(p)))


def _met(held: Constraints, session: int) -> list[tuple[int, int]]:
    """Neighbours, in the order of their clocks, that were together, beyond doubt, in all meetings that both have been in."""
    n, k = held.n, len(held.meeting)
    starts, ends = held.times[2 * n : 2 * n + k], held.times[2 * n + k :]
    rows = {r: at[(at >= 2 * n) & (at < 2 * n + k)] - 2 * n for (s, r), at in held.rows.items() if s == session}
    order = sorted((r for r, at in rows.items() if len(at)), key=lambda r: (float(ends[rows[r]].mean()), r))
    out = []
    for a, b in pairwise(order):
        _, at, to = np.intersect1d(held.meeting[rows[a]], held.meeting[rows[b]], return_indices=True)
        one, other = rows[a][at], rows[b][to]
        doubt = sum(held.corrections[session, r].bound_ns or 0 for r in (a, b))
        if len(at) and (starts[one] <= ends[other] + doubt).all() and (starts[other] <= ends[one] + doubt).all():
            out.append((min(a, b), max(a, b)))
    return out


def _bounds(held: Constraints, session: int, part: set[int], right: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds (n, 2) of what is to be added to the clocks of a part: time and bound, from messages with right ranks."""
    n, k, t = held.n, len(held.meeting), held.times
    known = np.zeros(int(held.owner.max()) + 1, bool)
    known[list(right)] = True
    mine = np.concatenate([held.rows[session, rank] for rank in sorted(part)])
    back, to = mine[mine < n], mine[(mine >= n) & (mine < 2 * n)]
    back, to = back[known[held.owner[back + n]]], to[known[held.owner[to - n]]]
    lower = [np.stack([t[to], t[to - n] - t[to]], axis=1)]
    upper = [np.stack([t[back], t[back + n] - t[back]], axis=1)]
    if k:
        start, end = t[2 * n : 2 * n + k], t[2 * n + k :]
        others = known[held.owner[2 * n : 2 * n + k]]
        least = np.iinfo(np.int64).min
        come, gone = np.full(held.meetings, least), np.full(held.meetings, -least - 1)
        np.maximum.at(come, held.meeting[others], start[others])
        np.minimum.at(gone, held.meeting[others], end[others])
        at = mine[(mine >= 2 * n) & (mine < 2 * n + k)] - 2 * n
        at = at[come[held.meeting[at]] > least]
        which = held.meeting[at]
        lower.append(np.stack([end[at], come[which] - end[at]], axis=1))
        upper.append(np.stack([start[at], gone[which] - start[at]], axis=1))
    return np.concatenate(lower), np.concatenate(upper)


def fitted(lower: np.ndarray, upper: np.ndarray) -> Line:
    """The line above lower (n, 2) and below upper (m, 2) bounds with most room to both; level where a level one does."""
    start = int(min(lower[:, 0].min(), upper[:, 0].min()))
    x, low = (lower[:, 0] - start).astype(np.float64), lower[:, 1].astype(np.float64)
    z, high = (upper[:, 0] - start).astype(np.float64), upper[:, 1].astype(np.float64)

    def room(drift: float) -> tuple[float, float]:
        """Half the room, and the offset in its middle."""
        bottom, top = float((low - drift * x).max()), float((high - drift * z).min())
        return (top - bottom) / 2, (top + bottom) / 2

    drift = 0.0
    if room(0.0)[0] < 0:
        a, b = -STEEPEST, STEEPEST
        for _ in range(HALVINGS):  # the room is concave in the drift
            c, d = a + (b - a) / 3, b - (b - a) / 3
            a, b = (c, b) if room(c)[0] < room(d)[0] else (a, d)
        drift = (a + b) / 2
    half, offset = room(drift)
    return Line(start, offset, drift, max(0, int(half)))


def moves(held: Constraints) -> int:
    """Move what arrives before it was sent; returns the largest move in ns. What is left after ROUNDS is for the caller to refuse."""
    for _ in range(ROUNDS):
        sent, received, _, after = held.ends(held.times)
        bad = np.flatnonzero(sent > received)
        if not len(bad):
            break
        rows = after[bad]
        need = sent[bad] - held.base[rows]
        code = held.session[rows].astype(np.int64) * (1 << 32) + held.owner[rows]
        for c in np.unique(code):
            mine = code == c
            key: Key = int(held.session[rows[mine][0]]), int(held.owner[rows[mine][0]])
            correction = held.corrections[key]
            correction.early.add(held.base[rows[mine]], need[mine])
            at = held.base[held.rows[key]]
            correction.early.apply(at)
            held.times[held.rows[key]] = at
    return int((held.times - held.base).max(initial=0))
