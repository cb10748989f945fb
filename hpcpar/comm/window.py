"""One-sided MPI: a window of words and bytes at every rank, and the thread that works on the windows of others.

    window of rank 1   | word 0 | word 1 | ... |      bytes ...      |
    any rank           read, write, add: atomic       put, get        each is complete at rank 1 when it returns

Every call waits for its own completion, and MPI has no flush that does not block: so a rank calls none of them itself. A `Courier` carries
them out on a thread of its own, and the rank waits for it as for any message: it hears of failures meanwhile, and gives up in time.

Who must be inside MPI? Between ranks of a node MPICH 5 and Open MPI 5 load and store in shared memory and ask nothing of the owner
(measured); over a network that cannot do it by itself, the owner's MPI takes part. So an owner calls `progress` while its window is in use.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcpar.comm.pending import LONGEST_NAP_S, NAP_S, Record, Waiter
from hpcpar.comm.world import World
from hpcpar.errors import PlanError

LEVELS = {MPI.THREAD_SINGLE: "THREAD_SINGLE", MPI.THREAD_FUNNELED: "THREAD_FUNNELED", MPI.THREAD_SERIALIZED: "THREAD_SERIALIZED"}
WORD = 8  # bytes
YIELDS = 20  # polls before the first nap
LISTEN_S = 2e-4  # how long a rank that waits for its courier lets go of the interpreter at a time


def require_threads(mode: str) -> None:
    """Raise PlanError if MPI does not let several threads call it at once: the server and the courier do, beside the rank."""
    level = MPI.Query_thread()
    if level != MPI.THREAD_MULTIPLE:
        raise PlanError(
            f'plan.sync.mode = "{mode}": three threads of a rank call MPI at once, and this MPI gave {LEVELS[level]}, '
            'not THREAD_MULTIPLE; use an MPI that was built with it, or "bsp"'
        )


def nap(idle: int) -> None:
    """Before poll number `idle` of a row that found nothing: give others the core at first, then sleep, longer each time."""
    time.sleep(0.0 if idle < YIELDS else min(LONGEST_NAP_S, NAP_S * (1 + idle - YIELDS)))


class Stopped(Exception):
    """A thread was told to stop while it waited."""


class Window:
    """`words` int64 words and `nbytes` bytes of this rank, open to all ranks of the world until `close`; making one is collective.

    Every rank has the same number of words. Raises PlanError where the memory of a window is not the memory that its owner sees.
    """

    def __init__(self, world: World, words: int, nbytes: int):
        self.comm = world.comm.Dup()
        self._win = MPI.Win.Allocate(WORD * words + nbytes, 1, comm=self.comm)
        if self._win.Get_attr(MPI.WIN_MODEL) != MPI.WIN_UNIFIED:
            raise PlanError('MPI windows here keep a copy of their own beside the owner\'s memory; use plan.sync.mode = "bsp"')
        memory: np.ndarray = np.asarray(self._win.tomemory(), np.uint8)
        self.words, self.bytes = memory[: WORD * words].view(np.int64), memory[WORD * words :]
        self.words[:] = 0
        self._base = WORD * words
        self._everything = (0, words, MPI.INT64_T)
        self._win.Lock_all(MPI.MODE_NOCHECK)

    def progress(self) -> None:
        """Let MPI serve other ranks."""
        self.comm.Iprobe()

    def fence(self) -> None:
        """Between the owner's loads and stores before and after it: it sees what others wrote, and they see what it stored, in order."""
        self._win.Sync()

    def put(self, owner: int, array: np.ndarray, at: int) -> None:
        """Write a contiguous array to the bytes of `owner` from `at` on."""
        self._win.Put([array, array.nbytes, MPI.BYTE], owner, (self._base + at, array.nbytes, MPI.BYTE))
        self._win.Flush(owner)

    def get(self, owner: int, into: np.ndarray, at: int) -> None:
        """Fill a contiguous array from the bytes of `owner` from `at` on; not atomic."""
        self._win.Get([into, into.nbytes, MPI.BYTE], owner, (self._base + at, into.nbytes, MPI.BYTE))
        self._win.Flush(owner)

    def read(self, owner: int) -> np.ndarray:
        """All words of `owner` (words,) int64, each read atomically."""
        found = np.empty(self._everything[1], np.int64)
        self._win.Get_accumulate([found, 0, MPI.INT64_T], [found, MPI.INT64_T], owner, self._everything, MPI.NO_OP)
        self._win.Flush(owner)
        return found

    def write(self, owner: int, word: int, value: int) -> None:
        """Set a word of `owner`, atomically."""
        self._update(owner, word, value, MPI.REPLACE)

    def add(self, owner: int, word: int, value: int) -> None:
        """Add to a word of `owner`, atomically."""
        self._update(owner, word, value, MPI.SUM)

    def _update(self, owner: int, word: int, value: int, op: MPI.Op) -> None:
        given, before = np.array([value], np.int64), np.empty(1, np.int64)
        self._win.Fetch_and_op([given, MPI.INT64_T], [before, MPI.INT64_T], owner, WORD * word, op)
        self._win.Flush(owner)

    def gather(self, values: np.ndarray, stopped: Callable[[], bool]) -> np.ndarray:
        """values (k,) of every rank, (ranks, k); collective over the owners' threads. Raises Stopped once this one is told to stop."""
        found = np.empty((self.comm.Get_size(), *values.shape), values.dtype)
        request, idle = self.comm.Iallgather(values, found), 0
        while not request.Test():
            if stopped():
                raise Stopped
            nap(idle)
            idle += 1
        return found

    def close(self) -> None:
        """Free the window; collective, after a barrier."""
        del self.words, self.bytes
        self._win.Unlock_all()
        self._win.Free()
        self.comm.Free()


class Call:
    """A job that a courier carries out."""

    def __init__(self, work: Callable[[], Any], what: Callable[[], str]):
        self.what = what
        self._work = work
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it, on the courier's thread."""
        try:
            self._result = self._work()
        except BaseException as e:  # it belongs to whoever waits
            self._error = e
        self._done.set()

    def listen(self) -> bool:
        """Whether it is done; lets the other threads of this process have the interpreter for a moment."""
        return self._done.wait(LISTEN_S)

    def result(self) -> Any:
        """What the work returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


class Courier:
    """Carries out one-sided work on a thread, one job after the other, in the order in which they were given."""

    def __init__(self, waiter: Waiter, record: Record):
        self._waiter, self._record = waiter, record
        self._jobs: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._thread.start()

    def start(self, work: Callable[[], Any], what: Callable[[], str]) -> Call:
        """Give it a job; `what` says in words what is awaited."""
        call = Call(work, what)
        self._jobs.put(call)
        return call

    def wait(self, call: Call, check: Callable[[], None], operation: str, axis: str = "dp", **facts: Any) -> Any:
        """The result of a job; the time until it is there is an event. `check` is called meanwhile, and raises to give up."""

        def done() -> bool:
            check()
            return call.listen()

        start = time.perf_counter_ns()
        self._waiter.until(done, call.what)
        self._record("wait", start, time.perf_counter_ns(), operation=operation, axis=axis, **facts)
        return call.result()

    def until(self, done: Callable[[], bool]) -> None:
        """Within a job: poll until done. Raises Stopped once the rank gives up."""
        idle = 0
        while not done():
            if self._stop.is_set():
                raise Stopped
            nap(idle)
            idle += 1

    def close(self) -> None:
        """End the thread; a job at hand is given up at its next poll."""
        self._stop.set()
        self._jobs.put(None)
        self._thread.join(1.0)

    def _run(self) -> None:
        while (call := self._jobs.get()) is not None:
            call.run()
