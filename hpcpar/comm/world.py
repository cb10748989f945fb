"""The MPI of a run: traced point-to-point transfers and collectives over groups of a mesh. Nothing else imports mpi4py for a run.

    world = World(record=...)           every rank of the launch
    group = world.group("dp")           a communicator of the ranks that `world.split` was told of

Device arrays: the stream is synchronised before every MPI call, and the buffer is the array itself or a pinned host copy (device.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

from mpi4py import MPI
from mpi4py.util import dtlib

from hpcpar import collectives
from hpcpar.comm import device
from hpcpar.comm.alarm import Alarm
from hpcpar.comm.pending import Pending, Record, Waiter
from hpcpar.comm.progress import Thread, require_threads
from hpcpar.comm.rounds import Rounds
from hpcpar.comm.several import Messages, Several

FIRST_CHANNEL, CHANNELS = 24000, 2000  # above those of all-reduces by rounds, below those of rings
OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


def _unrecorded(kind: str, start: int, end: int, **facts: Any) -> None:
    """Where no trace is wanted."""


class Pairs(Protocol):
    """Notes what this rank gave to each peer in one exchange of a block's rows, in bytes."""

    def __call__(self, block: int, operation: str, axis: str, peers: Sequence[int], sizes: Sequence[int]) -> None: ...


def _unpaired(block: int, operation: str, axis: str, peers: Sequence[int], sizes: Sequence[int]) -> None:
    """Likewise."""


def _displacements(counts: Sequence[int]) -> list[int]:
    return list(accumulate(counts, initial=0))[:-1]


def _type(array: Any) -> Any:
    return dtlib.from_numpy_dtype(array.dtype)


class Group:
    """The ranks of one communicator; collectives on arrays, in place."""

    def __init__(self, world: World, comm: MPI.Intracomm, axis: str, ranks: tuple[int, ...]):
        self.world, self.comm, self.axis, self.ranks = world, comm, axis, ranks
        world.made.append(comm)
        self.size = len(ranks)
        self.index = comm.Get_rank()
        self._channels = 0  # that `channel` gave
        self._several: Several | None = None  # the latest
        self._by_rounds = 0  # all-reduces by rounds so far, the same number on every rank

    def allreduce_start(self, array: Any, op: str = "sum", operation: str = "allreduce", algorithm: str = "mpi", **facts: Any) -> Pending:
        """Start the all-reduce of a contiguous array in place; algorithms by rounds ("auto", those of `collectives`) are for sums."""
        world, start = self.world, time.perf_counter_ns()
        table = self._table(array, op, algorithm)
        buffer, finish = device.both_buffer(array, world.direct and (table is not None or world.reduces))
        request: Any
        if table is None:
            request = self.comm.Iallreduce(MPI.IN_PLACE, buffer, OPS[op])
        else:
            self._by_rounds += 1
            request = Rounds(self.comm, self.index, table, buffer.reshape(-1), self._by_rounds)
        return self._pending(request, "collective", operation, array.nbytes, (buffer, array), finish, start, facts)

    def _table(self, array: Any, op: str, algorithm: str) -> collectives.Table | None:
        """The rounds of an all-reduce; None for the MPI's own. Raises ValueError for rounds that would not sum."""
        if algorithm == "mpi":
            return None
        if op != "sum":
            raise ValueError(f'the all-reduce "{algorithm}" sums; use "mpi" for {op}')
        nodes = collectives.normal([self.world.nodes[r] for r in self.ranks])
        return collectives.chosen(algorithm, nodes, array.size, array.itemsize, not device.on_device(array))

    def allreduce(self, array: Any, op: str = "sum", operation: str = "allreduce", **facts: Any) -> Any:
        """All-reduce in place and return the array."""
        self.allreduce_start(array, op, operation, **facts).wait()
        return array

    def reduce_scatter_start(
        self, array: Any, into: Any, counts: Sequence[int], operation: str = "reduce_scatter", **facts: Any
    ) -> Pending:
        """Start to sum `array` (sum(counts),) over the group; rank i of it gets its piece of counts[i] elements `into` (counts[i],).

        With None it gets them in place, at the beginning of `array`, whose other elements are then undefined; raises ValueError where
        counts ascend. The bytes of the event are those of the whole array. The adjoint of `allgather_start`.
        """
        start, direct = time.perf_counter_ns(), self.world.direct and self.world.reduces
        if into is None:
            if any(a < b for a, b in pairwise(counts)):  # MPICH 5.0.2 ends the program where a piece overlaps the place that it goes to
                raise ValueError(f"counts {list(counts)} ascend; a sum in place needs a piece behind the place where it is to stand")
            both, finish = device.both_buffer(array, direct)
            request = self.comm.Ireduce_scatter(MPI.IN_PLACE, both, list(counts), MPI.SUM)
            return self._pending(request, "collective", operation, array.nbytes, (both, array), finish, start, facts)
        buffer = device.send_buffer(array, direct)
        target, finish = device.receive_buffer(into, direct)
        request = self.comm.Ireduce_scatter(buffer, target, list(counts), MPI.SUM)
        return self._pending(request, "collective", operation, array.nbytes, (buffer, target, array, into), finish, start, facts)

    def allgather_start(self, array: Any, counts: Sequence[int], operation: str = "allgather", **facts: Any) -> Pending:
        """Start to fill `array` (sum(counts),) with the pieces of all ranks; this rank's piece of counts[index] elements stands in place.

        The bytes of the event are those of the whole array.
        """
        start = time.perf_counter_ns()
        buffer, finish = device.both_buffer(array, self.world.direct)
        request = self.comm.Iallgatherv(MPI.IN_PLACE, [buffer, list(counts), _displacements(counts), _type(array)])
        return self._pending(request, "collective", operation, array.nbytes, (buffer, array), finish, start, facts)

    def alltoall_start(
        self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int], operation: str = "alltoall", **facts: Any
    ) -> Pending:
        """Start to send piece i of `send` (sum(send_counts),) to rank i of the group and to fill `receive` with the pieces of all.

        The bytes of the event are those of `send`. Its own adjoint with the counts exchanged.
        """
        start = time.perf_counter_ns()
        buffer = device.send_buffer(send, self.world.direct)
        target, finish = device.receive_buffer(receive, self.world.direct)
        request = self.comm.Ialltoallv(
            [buffer, list(send_counts), _displacements(send_counts), _type(send)],
            [target, list(receive_counts), _displacements(receive_counts), _type(receive)],
        )
        return self._pending(request, "collective", operation, send.nbytes, (buffer, target, send, receive), finish, start, facts)

    def send_start(self, array: Any, to: int, tag: int, operation: str, axis: str = "pp", **facts: Any) -> Pending:
        """Start to send a contiguous array to rank `to` of the group; it must not change until the send is complete.

        Its event has the peer's rank in the world.
        """
        start = time.perf_counter_ns()
        buffer = device.send_buffer(array, self.world.direct)
        request = self.comm.Isend(buffer, to, tag)
        full = {"axis": axis, "peer": self.ranks[to], **facts}
        return self._pending(request, "send", operation, array.nbytes, (buffer, array), None, start, full)

    def receive_start(self, array: Any, source: int, tag: int, operation: str, axis: str = "pp", **facts: Any) -> Pending:
        """Start to receive into a contiguous array from rank `source` of the group; it holds the message once `wait` has returned."""
        start = time.perf_counter_ns()
        buffer, finish = device.receive_buffer(array, self.world.direct)
        request = self.comm.Irecv(buffer, source, tag)
        full = {"axis": axis, "peer": self.ranks[source], **facts}
        return self._pending(request, "receive", operation, array.nbytes, (buffer, array), finish, start, full)

    def several_start(self, rounds: Messages, operation: str, nbytes: int, **facts: Any) -> Several:
        """Start messages that follow each other in rounds, as one operation of so many bytes; all ranks start them in one order."""
        w = self.world
        full = {"operation": operation, "axis": self.axis, "bytes": nbytes, **facts}
        self._several = Several(rounds, self._several, full, w.record, w.waiter, w.outstanding)
        return self._several

    def channel(self) -> int:
        """A tag for the messages of one more operation of all ranks of the group, which begin such operations in one order."""
        self._channels += 1
        return FIRST_CHANNEL + self._channels % CHANNELS

    def twin(self) -> Group:
        """The same ranks on a communicator of its own: its collectives are matched apart from this one's; collective."""
        return Group(self.world, self.comm.Dup(), self.axis, self.ranks)

    def barrier(self) -> None:
        """Wait for every rank of the group."""
        start = time.perf_counter_ns()
        self._pending(self.comm.Ibarrier(), "collective", "barrier", 0, None, None, start, {}).wait()

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Small Python values of all ranks, on `root`: for set-up and checkpoints, not for a step."""
        self.barrier()  # so that the blocking call below is short, and the wait for late ranks naps
        return self.comm.gather(value, root)

    def share(self, value: Any, root: int = 0) -> Any:
        """A small Python value of `root`, on all ranks."""
        self.barrier()
        return self.comm.bcast(value, root)

    def _pending(
        self, request: Any, kind: str, operation: str, nbytes: int, keep: Any, finish: Any, start: int, facts: dict[str, Any]
    ) -> Pending:
        w = self.world
        full = {"operation": operation, "axis": self.axis, "bytes": nbytes, **facts}
        return Pending(request, kind, full, w.record, w.waiter, w.outstanding, keep, finish, start)


class World(Group):
    """All ranks of the run."""

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        record: Record = _unrecorded,
        wait: str = "spin",
        timeout_s: float = 600.0,
        direct: bool = True,
        reduces: bool = True,
    ):
        comm = MPI.COMM_WORLD.Dup() if comm is None else comm
        self.record, self.direct, self.reduces = record, direct, reduces  # what MPI may do on device memory
        self.pairs: Pairs = _unpaired
        self.made: list[MPI.Intracomm] = []  # every communicator, in the order that all ranks share
        self.outstanding: list[Pending] = []
        self.thread: Thread | None = None
        self.rank = comm.Get_rank()
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        super().__init__(self, comm, "world", tuple(range(comm.Get_size())))
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.node_ranks, self.node_rank = node.Get_size(), node.Get_rank()
        masks = node.allgather(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1)))
        self.cores = len(set().union(*masks))  # of the node, that its ranks may use together, bound to some each or not
        self.nodes: list[int] = comm.allgather(node.bcast(self.rank))  # of each rank, by its lowest rank
        node.Free()
        self.alarm = Alarm(comm)
        self.waiter = Waiter(False, timeout_s, self.alarm.check)
        self.set_waiting(wait)

    def set_waiting(self, wait: str) -> None:
        """How waiting ranks wait: "spin", "yield" (their core to others), or "auto": yield where ranks outnumber the cores they may use."""
        self.waiter.naps = wait == "yield" or (wait == "auto" and self.node_ranks > self.cores)

    def split(self, groups: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Make the communicators of (axis, ranks) pairs; every rank names the same pairs, and makes those that it is in.

        All ranks go through the pairs in one order, so that no two wait for each other in a circle.
        """
        for tag, (axis, ranks) in enumerate(sorted({(axis, tuple(ranks)) for axis, ranks in groups})):
            if self.rank in ranks and (axis, ranks) not in self._groups:
                inside = self.comm.Get_group().Incl(list(ranks))
                self._groups[axis, ranks] = Group(self, self.comm.Create_group(inside, tag), axis, ranks)

    def free(self) -> None:
        """Give every communicator back, for who makes many worlds in one process: an MPI has some 2000; collective.

        Nothing may be on its way, an alarm neither: it would come to the next world with the same number.
        """
        while self.made:
            self.made.pop().Free()
        self.alarm.free()

    def of(self, axis: str, ranks: Sequence[int]) -> Group:
        """The group that `split` made of these ranks."""
        return self._groups[axis, tuple(ranks)]

    def progress_by_thread(self) -> None:
        """Let a thread move what is on its way too; raises PlanError where this MPI serves one thread alone."""
        require_threads(MPI.Query_thread())
        self.thread = Thread()
        self.outstanding, self.waiter.check = self.thread.outstanding, self._alarms

    def _alarms(self) -> None:
        self.alarm.check()
        if self.thread:
            self.thread.check()

    def progress(self) -> None:
        """Let MPI move what is on its way; called between operations, because MPI may move only while someone is inside it."""
        for pending in tuple(self.outstanding):
            pending.test()
