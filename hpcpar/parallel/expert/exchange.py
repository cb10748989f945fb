"""Dispatch and combine of a layer over the ranks of a group, which hold consecutive experts; each is the other's adjoint.

    overlap = 1   counts ... D ............ experts C ...........
    overlap = 2   counts ... D0 .... experts of part 0 ---- experts of part 1        D, C: dispatch and combine, until they have arrived
                                     D1 .............       C1 ........
                                                   C0 .........

All ranks begin their exchanges in one order: a part leaves when the one before it has arrived, so that it does not take the network from
it. With fixed blocks nothing is counted first: dispatch says how many rows count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.config import Ways
from hpcpar.nn.context import Dispatch, Microbatch
from hpcpar.ops.array import array_module
from hpcpar.parallel.expert.collective import Collective
from hpcpar.parallel.expert.pairwise import Pairwise
from hpcpar.parallel.expert.two_level import TwoLevel
from hpcpar.parallel.expert.way import Way


class Carrier(Protocol):
    """How flat pieces travel between the ranks of a group."""

    def start(self, send: Any, receive: Any, sizes: np.ndarray, operation: str, back: bool) -> Pending:
        """Start to move the pieces (source, holder) of sizes (ranks, ranks) elements: from sources to holders, or `back`.

        `send` and `receive` hold those that this rank gives and gets, by rank. Sizes are right of pieces that it gives, gets or passes on.
        """

    def count(self, counts: np.ndarray, known: list[np.ndarray]) -> Pending:
        """Start to tell each rank the counts (E,) of its experts, and to fill in what this rank needs of `known` (see Way)."""


CARRIERS: dict[str, type[Carrier]] = {"mpi": Collective, "pairwise": Pairwise, "two-level": TwoLevel}


@dataclass
class Moving:
    """Rows on their way to the experts: what has been sent of them, by part."""

    rows: Any
    sent: dict[int, tuple[Pending, Any]] = field(default_factory=dict)


class Exchange(Dispatch):
    """Dispatch and combine over the ranks of a group, as `ways` says."""

    def __init__(self, group: Group, ways: Ways | None = None):
        self._group, self._ways = group, ways or Ways()
        self._carrier: Carrier = CARRIERS[self._ways.exchange](group)  # type: ignore[call-arg]

    def plan(self, counts: tuple[int, ...], most: int | None, at: Microbatch, name: str) -> Way:
        """Start to exchange the counts, or take `most` rows an expert for all of them."""
        fixed = self._ways.counts == "fixed"
        if fixed and most is None:
            raise ValueError(f"{name}: blocks of one length need a capacity")
        way = Way(counts, self._group.size, self._group.index, self._ways.overlap, most if fixed else None)
        way.traced = int(name.split(".")[1]) if at.training else None
        if not fixed:
            way.counting = self._carrier.count(way.own, way.known)
        return way

    def parts(self, way: Way) -> tuple[slice, ...]:
        """As many as `overlap` says."""
        return way.parts

    def counts(self, way: Way, part: int) -> tuple[int, ...]:
        """How many rows each of the part's experts gets."""
        return way.counts(part)

    def start(self, rows: Any, way: Way) -> Moving:
        """The first part of rows (A, ...) sorted by expert is sent."""
        way.settle()
        moving = Moving(rows)
        self._send(moving, way, 0)
        return moving

    def finish(self, moving: Moving, way: Way, part: int) -> Any:
        """The rows of the part's experts, sorted by expert, then by source; those of the next part are sent."""
        pending, blocks = moving.sent.pop(part)
        pending.wait()
        if part + 1 < len(way.parts):
            self._send(moving, way, part + 1)
        return way.unpack(blocks, part)

    def start_back(self, rows: Any, way: Way, part: int) -> tuple[Pending, Any]:
        """rows as `finish` gave them go back."""
        return self._move(way.pack_back(rows, part), way, part, "combine")

    def finish_back(self, moving: list[tuple[Pending, Any]], way: Way) -> Any:
        """The rows (A, ...) in the order in which `start` got them."""
        for pending, _ in moving:
            pending.wait()
        return way.unpack_back([blocks for _, blocks in moving])

    def _send(self, moving: Moving, way: Way, part: int) -> None:
        moving.sent[part] = self._move(way.pack(moving.rows, part), way, part, "dispatch")

    def _move(self, blocks: Any, way: Way, part: int, operation: str) -> tuple[Pending, Any]:
        """Start to move the blocks of a part; returns what comes, in blocks too."""
        xp, group, back = array_module(blocks), self._group, operation == "combine"
        rows = way.rows(part)
        given, got = (rows[:, group.index], rows[group.index]) if back else (rows[group.index], rows[:, group.index])
        width = int(np.prod(blocks.shape[1:]))
        if way.traced is not None:
            group.world.pairs(way.traced, operation, group.axis, group.ranks, (given * width * blocks.itemsize).tolist())
        into = xp.empty((int(got.sum()), *blocks.shape[1:]), blocks.dtype)
        flat = xp.ascontiguousarray(blocks).reshape(-1)
        return self._carrier.start(flat, into.reshape(-1), rows * width, operation, back), into
