"""A trace as an OTF2 archive, which Vampir opens and converters for Paraver read: a location group a rank, compute and waits as regions,
messages and collectives as MPI records, one-sided pushes and pulls as RMA records, memory as metrics.

    rank 0 on node7                location group (process)
      rank 0                       location: ENTER F ... LEAVE F, MPI_ISEND ... MPI_ISEND_COMPLETE, METRIC; in time
      rank 0, calls 2              where calls overlap (the owner's thread of a parameter server)
      rank 0, copies               what moves between host and device

Times are ns since the run's first event. OTF2 3.x, www.vi-hps.org/projects/score-p
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.draw.exports.lanes import DISJOINT, NESTS, Table, edges, lanes, times
from hpcpar.draw.exports.otf2_definitions import Definitions
from hpcpar.draw.exports.perfetto import origin
from hpcpar.draw.exports.slices import fields
from hpcpar.errors import PlanError
from hpcpar.trace import Trace
from hpcpar.trace.messages import ONE_SIDED
from hpcpar.trace.schema import COMPUTE, Kind

MESSAGES = (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)
LOCATIONS: Table = {"calls": ((*COMPUTE, Kind.WAIT, Kind.IO, Kind.CHECKPOINT), NESTS), "copies": ((Kind.COPY,), DISJOINT)}
TAG = 256  # a tag's remainder is the operation; the rest numbers the messages of two ranks, so that every reader matches them alike
Record = tuple[int, Callable[[], None]]  # when, and what writes it


def save(trace: Trace, folder: str | Path) -> str:
    """Write every readable rank to the archive `folder`/trace.otf2; returns what was done.

    A collective that OTF2 has no name for is an all-to-all with counts. Raises PlanError where the package `otf2` is missing or the folder
    holds something.
    """
    try:
        import otf2
    except ImportError:
        raise PlanError("an OTF2 archive needs its package; pip install 'hpcpar[exports]'") from None
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PlanError(f"--otf2 {folder}: it holds something already; name a folder that is new or empty")
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with otf2.writer.open(str(folder), archive_name="trace", timer_resolution=10**9) as archive:
            definitions = Definitions(otf2, archive, trace)
            tags, first = _tags(trace), origin(trace)
            for rank in trace.present:
                count += len(trace.events(rank))
                _Rank(definitions, trace, rank, tags[rank], first).write()
    except OSError as e:
        raise PlanError(f"cannot write {folder}: {e.strerror or e}") from None
    return f"{count} events of {len(trace.present)} ranks are in {folder / 'trace.otf2'}"


def _tags(trace: Trace) -> dict[int, dict[int, int]]:
    """{rank: {row: tag}} of the messages that have both ends."""
    out: dict[int, dict[int, int]] = {rank: {} for rank in trace.present}
    count: dict[tuple[int, int], int] = {}
    pairs = trace.messages().pairs
    facts = zip(*(pairs[f].tolist() for f in ("source", "destination", "send", "receive", "operation")), strict=True)
    for source, destination, send, receive, operation in facts:
        number = count[source, destination] = count.get((source, destination), 0) + 1
        out[source][send] = out[destination][receive] = (number * TAG + operation) % 2**32
    return out


class _Rank:
    """The records of one rank; each location's in time."""

    def __init__(self, definitions: Definitions, trace: Trace, rank: int, tags: dict[int, int], first: int):
        self._all, self._rank, self._tags, self._first = definitions, rank, tags, first
        self._events, self._memory = trace.events(rank), trace.memory(rank)

    def write(self) -> None:
        """The main location has the calls, the messages and the memory; what does not fit there has locations of its own."""
        archive, group = self._all.archive, self._all.processes[self._rank]
        main = archive.event_writer_from_location(self._all.main[self._rank])
        streams = [self._messages(main), self._metrics(main)]
        outside = np.flatnonzero(~np.isin(self._events["kind"], MESSAGES))
        for lane in lanes(self._events[outside], LOCATIONS):
            rows = outside[lane.rows]
            if lane.name == "calls":
                streams.append(self._calls(main, rows))
                continue
            for _, record in self._calls(archive.event_writer(f"rank {self._rank}, {lane.name}", group=group), rows):
                record()
        for _, record in heapq.merge(*streams, key=itemgetter(0)):
            record()

    def _calls(self, to: Any, rows: np.ndarray) -> Iterator[Record]:
        """ENTER and LEAVE of the events of a lane."""
        start, end = times(self._events[rows])
        values, regions = fields(self._events[rows]), {}
        for time, begins, i in edges(start - self._first, end - self._first):
            if begins:
                event = next(values)
                regions[i] = self._all.region(event)
                yield time, partial(to.enter, time, regions[i], attributes=self._all.attributes(event))
            else:
                yield time, partial(to.leave, time, regions.pop(i))

    def _messages(self, to: Any) -> Iterator[Record]:
        """Where each message or collective is posted and where it is complete."""
        rows = np.flatnonzero(np.isin(self._events["kind"], MESSAGES))
        start, end = (t - self._first for t in times(self._events[rows]))
        both, complete = np.concatenate([start, end]), np.repeat([False, True], len(rows))
        order = np.lexsort((complete, both))
        for i, time, done in zip((order % max(1, len(rows))).tolist(), both[order].tolist(), complete[order].tolist(), strict=True):
            row = int(rows[i])
            event = next(fields(self._events[row : row + 1]))
            yield time, partial(self._completed if done else self._posted, to, time, row, event)

    def _posted(self, to: Any, time: int, row: int, event: dict[str, int]) -> None:
        facts, size, world = {"attributes": self._all.attributes(event)}, event["bytes"], self._all.world
        if event["kind"] == Kind.COLLECTIVE:
            to.non_blocking_collective_request(time, row, **facts)
        elif event["operation"] in ONE_SIDED:
            one_sided = to.rma_put if event["kind"] == Kind.SEND else to.rma_get
            one_sided(time, self._all.window, event["peer"], size, row, **facts)
        elif event["kind"] == Kind.SEND:
            to.mpi_isend(time, event["peer"], world, self._tags.get(row, event["operation"]), size, row, **facts)
        else:
            to.mpi_irecv_request(time, row, **facts)

    def _completed(self, to: Any, time: int, row: int, event: dict[str, int]) -> None:
        size = event["bytes"]
        if event["kind"] == Kind.COLLECTIVE:
            kind, comm = self._all.collective(event), self._all.communicator(event, self._rank)
            to.non_blocking_collective_complete(time, kind, comm, self._all.nobody, size, size, row)
        elif event["operation"] in ONE_SIDED:
            to.rma_op_complete_non_blocking(time, self._all.window, row)
        elif event["kind"] == Kind.SEND:
            to.mpi_isend_complete(time, row)
        else:
            to.mpi_irecv(time, event["peer"], self._all.world, self._tags.get(row, event["operation"]), size, row)

    def _metrics(self, to: Any) -> Iterator[Record]:
        """The memory samples."""
        order = np.argsort(self._memory["time"], kind="stable")
        for time, _, kind, size in self._memory[order].tolist():
            metric = self._all.metric(kind.decode())
            yield time - self._first, partial(to.metric, time - self._first, metric, [size])
