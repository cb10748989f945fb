"""The walk through a program: each rank goes on until it waits, and is woken by what it waits for.

Every action is visited once, so the walk is linear in the length of the lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcpar.schedule.action import Kind
from hpcpar.schedule.deadlock import stuck

if TYPE_CHECKING:
    from hpcpar.schedule.program import Program

F, I, W, B, U = Kind.F, Kind.I, Kind.W, Kind.B, Kind.U
SA, RA, SG, RG, D, T, N = Kind.SA, Kind.RA, Kind.SG, Kind.RG, Kind.D, Kind.T, Kind.N


@dataclass(frozen=True)
class Durations:
    """Times of F, I, W and B by stage, of a message, an update and a reduction, and factors by rank."""

    F: list[float]
    I: list[float]
    W: list[float]
    B: list[float]
    comm: float
    update: float
    reduction: float
    slow: Mapping[int, float]


class _Collected:
    """What the ranks have posted for an update: reductions, tied gradients and norms, each with its time."""

    def __init__(self, program: Program, durations: Durations) -> None:
        schedule = program.schedule
        self.program, self.schedule, self.durations = program, schedule, durations
        self.norms = sum(len(schedule.stages_of(rank)) for rank in range(len(schedule.ranks)))
        self.reduced: dict[tuple[int, int | None], dict[int, float]] = {}
        self.tied: dict[tuple[int, int, int | None], float] = {}
        self.normed: dict[int | None, list[float]] = {}
        self.waiting: set[int] = set()

    def pass_(self, rank: int, kind: Kind, stage: int, version: int | None, now: float) -> float | None:
        """The time at which a rank is through a D, T, N or U, or None while it waits."""
        if kind is D:
            here = self.reduced.setdefault((stage, version), {})
            here.setdefault(rank, now)
            whole = len(here) >= len(self.schedule.holders(stage))
            return max(here.values()) + self.durations.reduction if whole else None
        if kind is T:
            self.tied[rank, stage, version] = now
            return now
        ready = self._tied(rank, stage, version, now) if kind is U or stage == 0 else now
        if kind is N:
            if ready is not None:
                self.normed.setdefault(version, []).append(ready)
            return ready
        if ready is not None and self.program.clip:
            every = self.normed.get(version, ())
            ready = max(ready, max(every) + self.durations.comm) if len(every) >= self.norms else None
        return None if ready is None else ready + self.durations.update

    def _tied(self, rank: int, stage: int, version: int | None, now: float) -> float | None:
        """U of both stages waits for the other's tied gradient; so does N of the first, which counts the tied weight in the norm."""
        if not self.program.has_tie(stage):
            return now
        peer = self.schedule.tied_peer(rank, stage)
        other = self.schedule.stages - 1 - stage
        sent = self.tied.get((peer, other, version))
        if sent is None:
            return None
        return max(now, sent + (self.durations.comm if peer != rank else 0.0))


def run(program: Program, durations: Durations) -> tuple[list[list[float]], list[list[float]]]:
    """Start and end of every action; raises PlanError with the grid where no rank can go on."""
    schedule = program.schedule
    M, first, last_stage = schedule.microbatches, schedule.first, schedule.stages - 1
    activation = [-1.0] * (schedule.stages * M)  # arrival of the input of (stage, microbatch)
    gradient = [-1.0] * (schedule.stages * M)  # arrival of the output gradient
    waiting: dict[int, int] = {}  # key of an arrival (gradients: -1 - key) -> the rank that waits
    collected = _Collected(program, durations)
    comm, place = durations.comm, schedule.placement
    lists, count = program.ranks, len(program.ranks)
    at, now = [0] * count, [0.0] * count
    starts: list[list[float]] = [[] for _ in range(count)]
    ends: list[list[float]] = [[] for _ in range(count)]
    ready = list(range(count - 1, -1, -1))
    while ready:
        rank = ready.pop()
        actions, i, t = lists[rank], at[rank], now[rank]
        start, end = starts[rank].append, ends[rank].append
        slow = durations.slow.get(rank, 1.0)
        mine = set(schedule.stages_of(rank))
        below = {s for s in mine if s + 1 in mine}  # the next stage may be here too: then no message goes
        above = {s for s in mine if s - 1 in mine}
        n = len(actions)
        while i < n:
            kind, stage, k, version, _ = actions[i]
            begin = t
            if k is None:
                through = collected.pass_(rank, kind, stage, version, t)
                if through is None:
                    collected.waiting.add(rank)
                    break
                begin = max(t, through - (durations.update if kind is U else durations.reduction if kind is D else 0.0))
                t = through
                if kind is not U and collected.waiting:
                    ready.extend(collected.waiting - {rank})
                    collected.waiting.clear()
            else:
                key = stage * M + k - first
                if kind is F:
                    if stage:
                        arrival = activation[key]
                        if arrival < 0.0:
                            waiting[key] = rank
                            break
                        if arrival > t:
                            begin = arrival
                    t = begin + durations.F[stage] * slow
                    if stage in below and place.get((stage + 1, k)) == rank:
                        activation[key + M] = t
                elif kind is SA:
                    activation[key + M] = t + comm
                    woken = waiting.pop(key + M, None)
                    if woken is not None:
                        ready.append(woken)
                elif kind is SG:
                    gradient[key - M] = t + comm
                    woken = waiting.pop(-1 - key + M, None)
                    if woken is not None:
                        ready.append(woken)
                elif kind is W:
                    t += durations.W[stage] * slow
                elif kind is I or kind is B:
                    if stage < last_stage:
                        arrival = gradient[key]
                        if arrival < 0.0:
                            waiting[-1 - key] = rank
                            break
                        if arrival > t:
                            begin = arrival
                    t = begin + (durations.I[stage] if kind is I else durations.B[stage]) * slow
                    if stage in above and place.get((stage - 1, k)) == rank:
                        gradient[key - M] = t
            start(begin)
            end(t)
            i += 1
        at[rank], now[rank] = i, t
    if any(i < len(actions) for i, actions in zip(at, lists, strict=True)):
        raise stuck(program, at)
    return starts, ends
