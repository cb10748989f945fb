"""From each rank's clock to the clock of the run, so that no message arrives before it was sent.

    offset           x---------x                 1  points: measured at the start, the end and every run.clock_every_s; linear between
                    /           '-------         2  a rank whose messages contradict that by more than the points may be wrong:
    rank 3   ------x                                the line that leaves most room between its messages, there and back (refine.py)
             local time ->                       3  what still arrives too early is moved, and time around it stretched by at most 1 %

Checked are all matched messages, and that nobody leaves a meeting of the whole world before all have come. What cannot be put right is
refused with its numbers. Point: Cristian, Distributed Computing 3 (1989) 146: half the shortest round trip is what it may be wrong by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.trace import refine
from hpcpar.trace.messages import Messages

Key = tuple[int, int]  # session, from the last (-1), and rank


@dataclass
class Correction:
    """What turns the local times of one rank in one session into times of the run; each step in ns, in place."""

    points: np.ndarray  # (n,) CLOCK
    line: refine.Line | None = None
    early: refine.Moves = field(default_factory=refine.Moves)

    @property
    def bound_ns(self) -> int | None:
        """How far the points may be wrong; None where nobody knows."""
        known = self.points["bound_ns"]
        return int(known.max()) if len(known) and (known >= 0).all() else None

    def by_points(self, times: np.ndarray) -> None:
        """Add the offset between the points, interpolated from the first one on, so that no digit is lost; constant outside."""
        if len(self.points):
            points = np.sort(self.points, order="local_ns")
            at, offset = points["local_ns"], points["offset_ns"]
            drift = np.interp(times - at[0], at - at[0], offset - offset[0])
            times += offset[0] + np.rint(drift).astype(np.int64)

    def apply(self, times: np.ndarray) -> None:
        """Correct times (n,) int64."""
        self.by_points(times)
        if self.line:
            self.line.apply(times)
        self.early.apply(times)


class Clocks:
    """The corrections of all ranks and sessions, and what they were checked against.

    `facts`: messages and meetings that were checked, `bound_s` of the points (None if a rank has none), `points`, the largest violation
    before (`found_s`) and after (`left_s`) refinement, the ranks put right by their messages and the room these leave, the largest move.
    Raises PlanError where the clocks cannot be put on one.
    """

    def __init__(self, points: dict[int, np.ndarray], sessions: dict[int, int], messages: Messages, meetings: np.ndarray):
        self.by_key: dict[Key, Correction] = {
            (s - sessions[rank], rank): Correction(found[found["session"] == s])
            for rank, found in points.items()
            for s in range(sessions[rank])
        }
        self.facts = self._settle(messages, meetings)

    def apply(self, rank: int, sessions: list[tuple[int, int]], times: np.ndarray) -> None:
        """Correct the times (n,) of a rank's table, of which each session has the rows (first, end), in place."""
        for number, (first, stop) in enumerate(sessions):
            self.by_key[number - len(sessions), rank].apply(times[first:stop])

    def _settle(self, messages: Messages, meetings: np.ndarray) -> dict[str, Any]:
        held = Constraints(messages, meetings, self.by_key)
        late = held.late()
        found = int(late.max(initial=0))
        room: dict[int, int] = {}
        if (late > held.doubt()).any():
            room = refine.lines(held)
            late = held.late()
        worst = held.worst() if (late > 0).any() else ""
        moved = refine.moves(held) if (late > 0).any() else 0
        left = int(held.late().max(initial=0)) if moved else int(late.max(initial=0))
        if left > 0:
            raise PlanError(
                f"{worst}; no offsets that change by less than {refine.STRETCH:.0%} of the time put that right: a clock has jumped, "
                "and no time of this trace can be believed"
            )
        bounds = [c.bound_ns for c in self.by_key.values()]
        known = [b for b in bounds if b is not None]
        return {
            "messages": len(messages.pairs),
            "meetings": held.meetings,
            "alone": messages.alone,
            "points": [min(n), max(n)] if (n := [len(c.points) for c in self.by_key.values()]) else [0, 0],
            "bound_s": max(known) / 1e9 if known and len(known) == len(bounds) else None,
            "found_s": found / 1e9,
            "left_s": left / 1e9,
            "by_messages": {str(rank): r / 1e9 for rank, r in sorted(room.items())},
            "moved_s": moved / 1e9,
        }


class Constraints:
    """All that must hold between the times of different ranks: `times` of the run, each with its owner, and who must not precede whom.

    times   [ sent (n) | received (n) | meetings' starts (k) | meetings' ends (k) ]
    """

    def __init__(self, messages: Messages, found: np.ndarray, corrections: dict[Key, Correction]):
        self.corrections = corrections
        pairs = messages.pairs
        meetings, self.meeting = _meetings(found)
        self.n, self.meetings = len(pairs), int(self.meeting[-1]) + 1 if len(self.meeting) else 0
        self._first = np.flatnonzero(np.append(True, self.meeting[1:] != self.meeting[:-1])) if len(self.meeting) else self.meeting
        self.owner = np.concatenate([pairs["source"], pairs["destination"], meetings["rank"], meetings["rank"]])
        self.session = np.concatenate([pairs["session"]] * 2 + [meetings["session"]] * 2)
        local = np.concatenate([pairs["sent"], pairs["received"], meetings["start"], meetings["end"]]).astype(np.int64)
        code = self.session.astype(np.int64) * (1 << 32) + self.owner
        order = np.argsort(code, kind="stable")
        edges = np.flatnonzero(np.append(True, code[order][1:] != code[order][:-1])) if len(order) else order
        self.rows: dict[Key, np.ndarray] = {
            (int(self.session[order[a]]), int(self.owner[order[a]])): order[a:b] for a, b in pairwise([*edges.tolist(), len(order)])
        }
        for key, rows in self.rows.items():
            at = local[rows]
            corrections[key].by_points(at)
            local[rows] = at
        self.base = local  # by points and lines
        self.times = local.copy()

    def ends(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What must not precede what, of any array in the order of `times`: (before, after), and the rows of both in it.

        A meeting's last comer is before everyone's leaving.
        """
        n, k = self.n, len(self.meeting)
        before, after = np.arange(n), np.arange(n, 2 * n)
        if k:
            start = times[2 * n : 2 * n + k]
            order = np.lexsort((start, self.meeting))
            last = order[np.append(self._first[1:], k) - 1]
            before = np.concatenate([before, 2 * n + last[self.meeting]])
            after = np.concatenate([after, 2 * n + k + np.arange(k)])
        return times[before], times[after], before, after

    def late(self) -> np.ndarray:
        """By how much each constraint is violated, in ns; not positive where it holds."""
        before, after, _, _ = self.ends(self.times)
        return before - after

    def doubt(self) -> np.ndarray:
        """By how much each constraint may be violated by what the points of its two ranks may be wrong, in ns."""
        bound = np.zeros(len(self.times), np.int64)
        for key, rows in self.rows.items():
            bound[rows] = self.corrections[key].bound_ns or 0
        _, _, before, after = self.ends(self.times)
        return bound[before] + bound[after]

    def worst(self) -> str:
        """The largest violation in words."""
        late = self.late()
        _, _, before, after = self.ends(self.times)
        at = int(late.argmax())
        what = "a message" if at < self.n else "a meeting of all ranks"
        a, b = int(self.owner[before[at]]), int(self.owner[after[at]])
        return f"{what} from rank {a} to rank {b} arrives {late[at] / 1e9:.6g} s before it was sent"


def _meetings(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Meetings (k,) MEETING with the number of each (k,), ascending: the i-th of an operation in a session is one for all ranks.

    Operations whose sizes do not agree are left out: they were not what all ranks did.
    """
    order = np.lexsort((found["start"], found["rank"], found["operation"], found["session"]))
    found = found[order]
    code = (found["session"].astype(np.int64) << 40) | (found["operation"].astype(np.int64) << 32)
    of_rank = code | found["rank"]
    fresh = np.append(True, of_rank[1:] != of_rank[:-1])[: len(found)]
    first = np.flatnonzero(fresh)
    place = np.arange(len(found)) - first[np.cumsum(fresh) - 1]
    order = np.lexsort((place, code))
    found, code, place = found[order], code[order], place[order]
    fresh = np.append(True, (code[1:] != code[:-1]) | (place[1:] != place[:-1]))[: len(found)]
    number = np.cumsum(fresh) - 1
    odd = found["bytes"] != found["bytes"][np.flatnonzero(fresh)][number] if len(found) else np.zeros(0, bool)
    good = ~np.isin(code, np.unique(code[odd]))
    return found[good], np.unique(number[good], return_inverse=True)[1].reshape(-1)
