"""What a rank holds at once, from its list: stash, what W still needs, weight versions, gradient buffers.

A rank does one thing at a time, so its list alone gives the peaks; a chunk of v counts 1/v of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.program import Schedule

F, I, W, B, U = Kind.F, Kind.I, Kind.W, Kind.B, Kind.U


@dataclass(frozen=True)
class Lifetimes:
    """The peaks of one rank.

    peak_stash        microbatches from the start of F to the end of I
    peak_held         microbatches from the end of I to the end of W
    peak_memory       the largest sum of both, as one counts each in full
    weight_versions   of its stage with the most, without the copy that an update is making
    gradient_buffers  of its stage with the most: updates whose gradients are accumulated or wait
    """

    peak_stash: Fraction
    peak_held: Fraction
    peak_memory: Fraction
    weight_versions: int
    gradient_buffers: int


def lifetimes(schedule: Schedule) -> list[Lifetimes]:
    """The peaks of every rank of a schedule."""
    return [_of_rank(schedule, rank) for rank in range(len(schedule.ranks))]


def _of_rank(schedule: Schedule, rank: int) -> Lifetimes:
    actions = schedule.ranks[rank]
    stash = held = peak_stash = peak_held = peak_memory = 0
    for a in actions:
        kind = a[0]
        if kind is F:
            stash += 1
            peak_stash = max(peak_stash, stash)
            peak_memory = max(peak_memory, stash + held)
        elif kind is I:
            stash -= 1
            held += 1
            peak_held = max(peak_held, held)
        elif kind is B:
            stash -= 1
        elif kind is W:
            held -= 1
    v = schedule.chunks
    stages = schedule.stages_of(rank)
    versions = max((alive_versions(schedule, actions, s) for s in stages), default=1)
    buffers = max((alive_gradients(schedule, actions, s) for s in stages), default=0)
    return Lifetimes(Fraction(peak_stash, v), Fraction(peak_held, v), Fraction(peak_memory, v), versions, buffers)


def alive_versions(schedule: Schedule, actions: tuple[Action, ...], stage: int) -> int:
    """The most weight versions that one stage holds at once: the newest, and those that a later action of the list still uses."""
    if schedule.synchronous:
        return 1
    last: dict[int, int] = {}  # version -> its last use
    for i, a in enumerate(actions):
        if a[1] == stage and a[0] is not U and a[3] is not None:
            last[a[3]] = i
    newest = schedule.first // schedule.group
    alive, peak = {newest}, 1
    for i, a in enumerate(actions):
        if a[1] != stage:
            continue
        if a[0] is U and a[3] is not None:
            if last.get(newest, -1) < i:
                alive.discard(newest)
            newest = a[3]
            alive.add(newest)
            peak = max(peak, len(alive))
        elif a[3] is not None and last[a[3]] == i and a[3] != newest:
            alive.discard(a[3])
    return peak


def alive_gradients(schedule: Schedule, actions: tuple[Action, ...], stage: int) -> int:
    """The most gradient buffers that one stage holds at once, from the first W of an update's microbatches to the update."""
    made = [a[3] for a in actions if a[0] is U and a[1] == stage]
    if schedule.synchronous:
        return 1
    first_of: list[tuple[int, int]] = []  # (first microbatch behind the group, version), ascending
    for version in made:
        if version is not None:
            first_of.append((version * schedule.group, version))
    open_, peak, at = set(), 0, 0
    for a in actions:
        if a[1] != stage:
            continue
        if a[0] is W or a[0] is B:
            while at < len(first_of) and a[2] >= first_of[at][0]:  # type: ignore[operator]
                at += 1
            if at < len(first_of):
                open_.add(first_of[at][1])
                peak = max(peak, len(open_))
        elif a[0] is U:
            open_.discard(a[3])  # type: ignore[arg-type]
    return peak
