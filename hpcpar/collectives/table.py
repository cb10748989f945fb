"""An all-reduce as data: rounds of moves between ranks, written for all ranks at once; what is run is what is checked and priced.

    ring of 3 ranks, 3 chunks      round 1   0 -(0)+> 1   1 -(1)+> 2   2 -(2)+> 0      + the receiver adds
                                   round 2   0 -(2)+> 1   1 -(0)+> 2   2 -(1)+> 0
                                   round 3   0 -(1)-> 1   1 -(2)-> 2   2 -(0)-> 0      - the receiver overwrites
                                   round 4   0 -(0)-> 1   1 -(1)-> 2   2 -(2)-> 0

A rank sends what it has at the start of a round, and takes what it receives when the round ends for it; it waits for its partners alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hpcpar.layout import cut


class Move(NamedTuple):
    """Chunks [first, last) of `source` go to `destination`, which adds them to its own (`reduce`) or overwrites its own with them."""

    source: int
    destination: int
    first: int
    last: int
    reduce: bool


Round = tuple[Move, ...]


@dataclass(frozen=True)
class Table:
    """The moves of `ranks` ranks, an array in `chunks` chunks."""

    ranks: int
    chunks: int
    rounds: tuple[Round, ...]

    @cached_property
    def _parts(self) -> list[list[Round]]:
        parts: list[list[Round]] = [[] for _ in range(self.ranks)]
        for moves in self.rounds:
            mine: dict[int, list[Move]] = {}
            for m in moves:
                mine.setdefault(m.source, []).append(m)
                mine.setdefault(m.destination, []).append(m)
            for rank, found in mine.items():
                parts[rank].append(tuple(found))
        return parts

    def part(self, rank: int) -> list[Round]:
        """The rounds in which a rank sends or receives, with its moves alone."""
        return self._parts[rank]

    def span(self, move: Move, elements: int) -> tuple[int, int]:
        """(start, stop) of what a move carries of an array of `elements`: the first chunks hold one element more, some may be empty."""
        first, last = cut(elements, self.chunks, move.first), cut(elements, self.chunks, move.last - 1)
        return first.start, last.stop

    def sent(self, rank: int, elements: int) -> int:
        """How many elements of an array of `elements` a rank sends."""
        spans = (self.span(m, elements) for moves in self.part(rank) for m in moves if m.source == rank)
        return sum(stop - start for start, stop in spans)


def joined(*phases: Sequence[Sequence[Move]]) -> tuple[Round, ...]:
    """The rounds of phases, one phase after the other."""
    return tuple(tuple(moves) for phase in phases for moves in phase)


def together(*parts: Sequence[Sequence[Move]]) -> list[list[Move]]:
    """Rounds of groups that have no rank in common, side by side."""
    longest = max((len(p) for p in parts), default=0)
    return [[m for p in parts if i < len(p) for m in p[i]] for i in range(longest)]


def powers(n: int) -> Iterator[int]:
    """1, 2, 4, ... below n."""
    step = 1
    while step < n:
        yield step
        step *= 2
