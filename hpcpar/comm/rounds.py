"""One rank's part of an all-reduce by rounds (collectives.Table), as a request that is tested like MPI's own.

    post round 1 -- Test, Test, ... -- all messages through: add -- post round 2 -- Test, ... -- add or nothing -- complete

It never blocks. What is received to be added waits in a scratch array until the round's sends are through, because they may read the same
chunk. Several may be in flight: each has a tag of its own, and within one the messages of a pair are in order.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from hpcpar.collectives.table import Round, Table
from hpcpar.comm import device
from hpcpar.ops.array import array_module

FIRST_TAG, TAGS = 16000, 8000  # below the channels of norms and tied weights, above those of stages


class Rounds:
    """An all-reduce of a flat array in place; `index` is this rank in `comm`, `number` the same for this all-reduce on every rank."""

    def __init__(self, comm: MPI.Intracomm, index: int, table: Table, array: Any, number: int):
        self._comm, self._index, self._table, self._array = comm, index, table, array
        self._tag = FIRST_TAG + number % TAGS
        self._rounds = iter(table.part(index))
        self._requests: list[MPI.Request] | None = None
        self._adds: list[tuple[Any, Any]] = []  # (chunk, what is to be added to it)
        self._sent: list[Any] = []
        self._scratch: Any = None
        self._next()

    @property
    def under_way(self) -> list[MPI.Request]:
        """The messages of the present round."""
        return self._requests or []

    def Test(self) -> bool:
        """Whether the sum is complete; takes every step that can be taken now."""
        while self._requests is not None:
            if not MPI.Request.Testall(self._requests):
                return False
            for chunk, found in self._adds:
                array_module(chunk).add(chunk, found, out=chunk)
            self._next()
        return True

    def _next(self) -> None:
        """Post the messages of the next round in which this rank has any."""
        self._requests = None
        self._adds.clear()
        self._sent.clear()
        for moves in self._rounds:
            if requests := self._post(moves):
                self._requests = requests
                return
        self._scratch = None

    def _post(self, moves: Round) -> list[MPI.Request]:
        """Receives first, so that what arrives has a place to go. Both ends know which chunks are empty: those are not sent."""
        spans = [(m, *self._table.span(m, self._array.size)) for m in moves]
        needed = sum(stop - start for m, start, stop in spans if m.reduce and m.destination == self._index)
        if needed and (self._scratch is None or self._scratch.size < needed):
            self._scratch = array_module(self._array).empty(needed, self._array.dtype)
        requests, used = [], 0
        for m, start, stop in spans:
            if m.destination != self._index or start == stop:
                continue
            chunk = into = self._array[start:stop]
            if m.reduce:
                into = self._scratch[used : used + stop - start]
                used += stop - start
                self._adds.append((chunk, into))
            buffer, _ = device.receive_buffer(into, True)
            requests.append(self._comm.Irecv(buffer, m.source, self._tag))
        for m, start, stop in spans:
            if m.source == self._index and start < stop:
                buffer = device.send_buffer(self._array[start:stop], True)
                self._sent.append(buffer)
                requests.append(self._comm.Isend(buffer, m.destination, self._tag))
        return requests
