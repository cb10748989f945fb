"""Which buffers stay on the device, which move, and when: decided before step 1 from the accesses of a dry iteration.

    accesses      F0   F1   F2   B2   B1   B0   U0   U1   U2 | F0 ...      the same every step
    slots        0    1    2    3    4    5    6    7    8    9            moves stand between accesses
    moves        1 in      0 out ...                                       "in" while the access before its use runs, "out" behind the last

Where room is lacking, the buffer whose next use is furthest away leaves (Belady 1966; Cui et al. 2016, "GeePS", section 3.3). One whose
copy on the host is still good is dropped instead of moved. A step ends with the same buffers on the device as it began, so one plan serves
every step.

    1  demand       walk through the accesses: what is missing comes in at the slot of its access, what must leave leaves there
    2  leave early  an eviction goes to the slot behind the last use: the copy then runs beside other accesses
    3  come early   a move in goes to the earliest slot from which there is room for it until its use

Bytes on the device never pass the limit if moves out end before the slot that counts on their room; whoever executes waits for that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hpcpar.errors import PlanError
from hpcpar.forms.accesses import Access, Buffer, Iteration


class Move(NamedTuple):
    """A buffer comes to the device (in), goes to the host (out), or is forgotten on the device, its copy on the host being good (drop)."""

    kind: Literal["in", "out", "drop"]
    buffer: Buffer


@dataclass(frozen=True)
class Placement:
    """The moves of one round of accesses: `moves[i]` are issued before access i, `moves[-1]` behind the last.

    `home` is what is on the device when a round begins and when it ends. `working_set` is the least limit, `peak` the most that this plan
    holds at once; both in bytes, with `fixed`.
    """

    accesses: tuple[Access, ...]
    sizes: Mapping[Buffer, int]
    home: tuple[Buffer, ...]
    moves: tuple[tuple[Move, ...], ...]
    fixed: int
    limit: int
    working_set: int
    peak: int

    def moved_bytes(self, kind: Literal["in", "out"]) -> int:
        """Bytes that a round copies to the device, or to the host."""
        return sum(self.sizes[m.buffer] for slot in self.moves for m in slot if m.kind == kind)

    @property
    def home_bytes(self) -> int:
        """Bytes of what is on the device between rounds, without `fixed`."""
        return sum(self.sizes[b] for b in self.home)


class Demand(NamedTuple):
    """The most that one access needs on the device: bytes in all and by kind, and which access it is (-1: none needs more than `fixed`)."""

    bytes: int
    access: int
    parts: Mapping[str, int]


def working_set(it: Iteration, movable: frozenset[str]) -> Demand:
    """The largest working set where buffers of the `movable` kinds may leave between accesses; below it no plan exists."""
    stay = {k: _all(it, k) for k in ("weights", "optimizer") if k not in movable}
    worst = Demand(sum(it.fixed.values()) + sum(stay.values()), -1, {**it.fixed, **stay})
    saved = 0  # saved activations that may not leave
    for i, a in enumerate(it.accesses):
        if "saved" not in movable:
            saved += sum(it.sizes[b] for b in a.makes)
        here = {**it.fixed, **stay, "beside": a.beside, "saved": saved}
        for b in {*a.uses, *a.makes}:
            if b.kind in movable:
                here[b.kind] = here.get(b.kind, 0) + it.sizes[b]
        if sum(here.values()) > worst.bytes:
            worst = Demand(sum(here.values()), i, here)
        if "saved" not in movable:
            saved -= sum(it.sizes[b] for b in a.frees)
    return worst


def place(it: Iteration, movable: frozenset[str], limit: int, home: Sequence[Buffer] | None = None) -> Placement:
    """The placement under a limit in bytes; raises PlanError below the working set.

    `home` is what is on the device before and after; where it is not given, it is what a round leaves that knows of the next one.
    """
    need = working_set(it, movable)
    if limit < need.bytes:
        raise PlanError(f"the device holds {limit} bytes and the working set is {need.bytes}")
    walk = _Walk(it, movable, limit)
    if home is None:
        end = walk.demand({}, None)
        start = walk.demand(dict.fromkeys(end, True), end)
    else:
        start = dict.fromkeys((b for b in home if b.kind in movable), True)
    walk.demand(start, start)
    moves = walk.moves(start)
    stay = [b for b in it.sizes if b.kind in ("weights", "optimizer") and b.kind not in movable]
    fixed, peak = sum(it.fixed.values()), limit - min(r - o for r, o in zip(walk.room, walk.held, strict=True))
    return Placement(it.accesses, it.sizes, (*stay, *start), moves, fixed, limit, need.bytes, peak)


class _Walk:
    """The steps 1 to 3 over the slots 0 .. n of a round; slot n is behind the last access."""

    def __init__(self, it: Iteration, movable: frozenset[str], limit: int):
        self.it, self.movable = it, movable
        self.places: dict[Buffer, list[int]] = {}  # the accesses of each buffer
        for i, a in enumerate(it.accesses):
            for b in (*a.uses, *a.makes):
                if self._moves(b):
                    self.places.setdefault(b, []).append(i)
        self.room = self._room(limit)
        self.held: list[int] = []  # movable bytes on the device during each access, and behind the last
        self.comings: list[tuple[int, Buffer]] = []  # (slot, buffer)
        self.leavings: list[tuple[int, int, Buffer, bool]] = []  # (slot, slot behind the last use, buffer, whether it must be copied)

    def _room(self, limit: int) -> list[int]:
        """What each access, and the time behind the last, leaves to movable buffers."""
        left = limit - sum(self.it.fixed.values()) - sum(_all(self.it, k) for k in ("weights", "optimizer") if k not in self.movable)
        out, saved = [], 0
        for a in self.it.accesses:
            stay = "saved" not in self.movable
            saved += stay * sum(self.it.sizes[b] for b in a.makes)
            out.append(left - a.beside - saved)
            saved -= stay * sum(self.it.sizes[b] for b in a.frees)
        return [*out, left]

    def demand(self, start: Mapping[Buffer, bool], end: Mapping[Buffer, bool] | None) -> dict[Buffer, bool]:
        """Step 1: from the buffers `start` on the device to `end`, or as it comes; returns what is there at the end.

        The values say whether the copy on the host is out of date.
        """
        sizes, n = self.it.sizes, len(self.it.accesses)
        there, last = dict(start), dict.fromkeys(start, -1)
        self.comings, self.leavings, self.held = [], [], []
        for i, a in enumerate(self.it.accesses):
            need = [b for b in (*a.uses, *a.makes) if self._moves(b)]
            missing = [b for b in need if b not in there]
            held = sum(sizes[b] for b in (*there, *missing))
            others = sorted((b for b in there if b not in need), key=lambda b: (self._next(b, i), b))
            leave: list[Buffer] = []
            while held > self.room[i]:
                leave.append(others.pop())
                held -= sizes[leave[-1]]
            for b in reversed(leave):  # small ones chosen first may stay beside a large one chosen last
                if held + sizes[b] <= self.room[i]:
                    held += sizes[b]
                else:
                    self.leavings.append((i, last[b] + 1, b, there.pop(b)))
            for b in missing:
                there[b] = b in a.makes  # made here: there is no copy on the host
                if b not in a.makes:
                    self.comings.append((i, b))
            self.held.append(held)
            last |= dict.fromkeys(need, i)
            there |= {b: True for b in a.writes if b in there}
            for b in a.frees:
                there.pop(b, None)
        if end is not None:
            self.leavings += [(n, last[b] + 1, b, there.pop(b)) for b in sorted(there.keys() - end.keys())]
            for b in end:
                if b not in there:
                    there[b] = False
                    self.comings.append((n, b))
        self.held.append(sum(sizes[b] for b in there))
        return there

    def moves(self, start: Mapping[Buffer, bool]) -> tuple[tuple[Move, ...], ...]:
        """Steps 2 and 3."""
        sizes, held = self.it.sizes, self.held
        out: list[list[Move]] = [[] for _ in held]
        gone: dict[Buffer, list[int]] = {}  # the slots from which a buffer is not there
        for slot, behind, b, copied in self.leavings:
            out[behind].append(Move("out" if copied else "drop", b))
            first = min(slot, behind + copied)  # a copy takes the time of one access, where there is one
            for j in range(first, slot):
                held[j] -= sizes[b]
            gone.setdefault(b, []).append(first)
        earliest = 0  # moves in keep the order of their uses
        for slot, b in self.comings:
            low = max([earliest, *(g for g in gone.get(b, ()) if g <= slot)])
            at = slot
            while at > low and held[at - 1] + sizes[b] <= self.room[at - 1]:
                at -= 1
                held[at] += sizes[b]
            earliest = at
            if Move("drop", b) in out[at]:  # there is room for it to stay
                out[at].remove(Move("drop", b))
            else:
                out[at].append(Move("in", b))
        return tuple(tuple(sorted(slot, key=lambda m: m.kind == "in")) for slot in out)

    def _moves(self, b: Buffer) -> bool:
        """Whether a buffer may move; the embedding saves nothing but tokens."""
        return b.kind in self.movable and self.it.sizes[b] > 0

    def _next(self, b: Buffer, i: int) -> int:
        """The next access of a buffer from access i on, those of the next round included."""
        places, n = self.places.get(b, ()), len(self.it.accesses)
        at = bisect_left(places, i)
        return places[at] if at < len(places) else n + (places[0] if places else n)


def _all(it: Iteration, kind: str) -> int:
    return sum(size for b, size in it.sizes.items() if b.kind == kind)
