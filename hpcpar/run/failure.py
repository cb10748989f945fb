"""The end of a run that failed: say where this rank was, keep the trace, end all ranks. Never a hang."""

from __future__ import annotations

import socket
import sys
import traceback
from typing import NoReturn

from hpcpar.comm.world import World
from hpcpar.errors import Aborted
from hpcpar.run.recorder import Recorder


def fail(error: BaseException, recorder: Recorder, world: World) -> NoReturn:
    """Print rank, host, step, action and traceback in one piece, close the trace and end every rank; does not return."""
    if not isinstance(error, Aborted):  # the rank that failed says why; the others only leave
        head = f"rank {world.rank} on {socket.gethostname()} failed in step {recorder.step}, action {recorder.action}"
        text = "".join(traceback.format_exception(error))
        _say(f"\nhpcpar: {head}\n{text}hpcpar: all ranks are ended\n")
        world.alarm.ring()
    try:
        recorder.close()
    except Exception as e:  # the first failure is the one to report; the trace is readable up to its last flush
        _say(f"hpcpar: the trace of rank {world.rank} was not closed: {e}\n")
    world.alarm.leave(1)


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
