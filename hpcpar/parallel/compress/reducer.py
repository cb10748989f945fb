"""Buckets that leave compressed, while the backward goes on: each goes through the rounds of its codec.

    bucket 0   |--- round 0 ---|--- round 1 ---|
    bucket 1        |--- round 0 ---|           |--- round 1 ---|       never before bucket 0's: one order of calls on every rank

Each round has a communicator of its own. On one alone, a rank whose first message came early would call round 1 of bucket 0 before
round 0 of bucket 1, another rank the other way around, and MPI matches collectives by their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.nn.parameters import FlatMap
from hpcpar.parallel.buckets import Buckets
from hpcpar.parallel.compress.codec import Codec


class Flight:
    """One bucket on its way: `round` is the one in the air."""

    def __init__(self, rounds: Iterator[list[Pending]]):
        self._rounds = rounds
        self.round = -1
        self.landed = False
        self.pending: list[Pending] = []
        self.go_on()

    def go_on(self) -> None:
        """Start the next round, or land: the sum is there."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite stays so, and the norm finds it
            found = next(self._rounds, None)
        self.landed = found is None
        self.pending = found or []
        self.round += 1


class Compressed(Buckets):
    """The buckets of one stage's gradients, summed through a codec; collective to make."""

    def __init__(self, at: FlatMap, flat: Any, group: Group, stage: int, bucket_mb: float, first_mb: float, codec: Codec):
        super().__init__(at, flat, group, stage, bucket_mb, first_mb, "mpi")
        self.codec, self.group = codec, group
        self._groups = [group.twin() for _ in range(codec.rounds)]
        self._flights: list[Flight] = []

    def ready(self, start: int, stop: int) -> None:
        """The gradients of [start, stop) are complete on this rank; full buckets leave, and those in the air go on where they can."""
        super().ready(start, stop)
        self._advance()

    def _depart(self, bucket: int) -> None:
        low, high = self.buckets[bucket]
        self._flights.append(Flight(self.codec.exchange(low, high, self._groups, self._stage)))

    def _advance(self) -> None:
        """Start every round whose messages before it are complete and which the bucket ahead has started too."""
        ahead: float = math.inf
        for flight in self._flights:
            while not flight.landed and flight.round < ahead and all(p.test() for p in flight.pending):
                flight.go_on()
            if not flight.landed:
                ahead = min(ahead, flight.round)
        self._flights = [f for f in self._flights if not f.landed]

    def finish(self) -> None:
        """Wait until every bucket is summed; raises if one was never filled."""
        super().finish()
        while self._flights:
            for pending in self._flights[0].pending:
                pending.wait()
            self._advance()

    def settle(self, applied: bool) -> None:
        """The sums of this step were applied, or skipped on all ranks."""
        self.codec.settle(applied)
