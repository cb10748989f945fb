"""The end of a run that failed: say where this rank was, keep the trace, end all ranks. Never a hang."""

from __future__ import annotations

import errno
import socket
import sys
import traceback
from typing import NoReturn

from hpcpar.comm.world import World
from hpcpar.errors import Aborted
from hpcpar.run.recorder import Recorder
from hpcpar.run.status import Status

STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}  # no fault of the program, and the message says it all


def fail(error: BaseException, recorder: Recorder, world: World, status: Status | None = None) -> NoReturn:
    """Print rank, host, step, action and traceback in one piece, close the trace and end every rank; does not return."""
    if not isinstance(error, Aborted):  # the rank that failed says why; the others only leave
        head = f"rank {world.rank} on {socket.gethostname()} failed in step {recorder.step}, action {recorder.action}"
        reason = f"{type(error).__name__}: {error}"
        full = isinstance(error, OSError) and error.errno in STORAGE
        text = f"hpcpar: {reason}; make room, then --resume\n" if full else "".join(traceback.format_exception(error))
        _say(f"\nhpcpar: {head}\n{text}hpcpar: all ranks are ended\n")
        world.alarm.ring()
        if status:
            status.end("failed", 1, f"{head}: {reason}")
    close_trace(recorder, world.rank)
    world.alarm.leave(1)


def close_trace(recorder: Recorder, rank: int) -> None:
    """Close the trace of a run that ends early: what ends it is the failure to report; the trace is readable up to its last flush."""
    try:
        recorder.close()
    except Exception as e:
        _say(f"hpcpar: the trace of rank {rank} was not closed: {e}\n")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
