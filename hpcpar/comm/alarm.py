"""One rank failed: the others hear of it wherever they wait, and all leave together.

    rank 2 fails    ring --> all others        they stop at their next wait or action
    all             leave: a barrier, then each exits with code 1, as a program does that ends by itself

A rank that does not come within `PATIENCE_S` (it computes, or hangs in a library) is ended by MPI_Abort. A launcher that kills reports the
kill instead of the code; ranks that leave together leave it nothing to kill.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from hpcpar.errors import Aborted

TAG = 1
PATIENCE_S = 5.0


class Alarm:
    """Tells and hears of failures, on a communicator of its own."""

    def __init__(self, comm: MPI.Intracomm):
        self._comm = comm.Dup()
        self.rung = False

    def ring(self) -> None:
        """Tell every other rank."""
        self.rung = True
        for rank in range(self._comm.Get_size()):
            if rank != self._comm.Get_rank():
                with suppress(MPI.Exception):  # that rank was lost
                    self._comm.Isend(np.zeros(0, np.uint8), rank, TAG)

    def check(self) -> None:
        """Raise Aborted if another rank has failed."""
        status = MPI.Status()
        if not self.rung and self._comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            self.rung = True
            raise Aborted(f"rank {status.Get_source()} failed")

    def check_left(self) -> None:
        """Likewise, where ranks were lost (ULFM): what they might have said is no more waited for."""
        with suppress(MPI.Exception):  # one more was lost between the two calls: the next check goes on without it
            self._comm.Ack_failed(self._comm.Get_failed().Get_size())
            self.check()

    def free(self) -> None:
        """Give the communicator back."""
        self._comm.Free()

    def leave(self, code: int) -> NoReturn:
        """End this process together with all others: raises SystemExit."""
        end = time.monotonic() + PATIENCE_S
        try:
            everyone = self._comm.Ibarrier()
            while not everyone.Test():
                if time.monotonic() > end:
                    self._comm.Abort(code)
                time.sleep(1e-3)
        except MPI.Exception:  # a rank was lost, in a launch that goes on without it
            self._comm.Abort(code)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE_S))  # MPI_Finalize may wait for messages that nobody takes
        raise SystemExit(code)
