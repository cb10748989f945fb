"""A thread that lets MPI move messages while the rank computes.

    rank      | backward of a layer (BLAS, without the interpreter's lock) |       calls between operations test too
    thread       test  test  test  test ...                                        sleeps where nothing is on its way

MPI moves a message, and an all-reduce by rounds goes on, only while someone is inside it. Between two operations of a large model that may
be long; the thread looks every `PAUSE_S`. It needs a core, or takes its share of the rank's. A Pending takes one thread at a time, and its
event is one append to a list: the trace needs no lock.
"""

from __future__ import annotations

import atexit
import threading

from mpi4py import MPI

from hpcpar.comm.pending import Pending
from hpcpar.errors import PlanError

PAUSE_S = 200e-6
LEVELS = {
    MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE",
    MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
    MPI.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED",
}


def require_threads(level: int) -> None:
    """Raise PlanError unless MPI takes calls from several threads at once."""
    if level != MPI.THREAD_MULTIPLE:
        raise PlanError(
            f'plan.sync.progress = "thread" needs MPI_THREAD_MULTIPLE, and this MPI gives {LEVELS.get(level, level)}: '
            'two threads would corrupt it; use "calls", or an MPI built with threads'
        )


class Outstanding(list[Pending]):
    """What is on its way; an addition wakes the thread."""

    def __init__(self) -> None:
        super().__init__()
        self.some = threading.Event()

    def append(self, pending: Pending) -> None:
        """One more is on its way."""
        super().append(pending)
        self.some.set()


class Thread:
    """Tests what is on its way until it is stopped; `check` raises what it failed of."""

    def __init__(self) -> None:
        self.outstanding = Outstanding()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # before MPI ends

    def check(self) -> None:
        """Raise what ended the thread early."""
        if self._error is not None:
            raise RuntimeError("the progress thread failed") from self._error

    def stop(self) -> None:
        """End the thread; what is on its way then moves by calls alone."""
        self._over.set()
        self.outstanding.some.set()
        self._thread.join()
        atexit.unregister(self.stop)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                if not self.outstanding:
                    self.outstanding.some.clear()
                    if not self.outstanding and not self._over.is_set():  # what comes after this line sets the event again
                        self.outstanding.some.wait()
                    continue
                for pending in tuple(self.outstanding):
                    pending.test()
                self._over.wait(PAUSE_S)
        except BaseException as e:
            self._error = e
