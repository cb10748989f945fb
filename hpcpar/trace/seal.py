"""Is it safe to hand a file to HDF5? A damaged one can end the process that reads it, or keep it busy for ever.

    | seal: 512 bytes, HDF5's user block | HDF5 ... |        written when the file is closed: the length and a checksum of the whole rest

A file whose seal holds is as it was written. One without a seal, of a run that was killed or still goes on, is read by a child first.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

BYTES = 512  # the least that HDF5 keeps free for its user
PATTERN = re.compile(rb"hpcpar trace, closed at (\d+) bytes, crc ([0-9a-f]{8})\n")
LIMIT_S = 300
PART = 1 << 22


def seal(path: Path) -> None:
    """Write the seal of a file that was made with a user block of BYTES and is closed. Raises OSError."""
    crc, size = _checksum(path)
    with path.open("r+b") as file:
        file.write(b"hpcpar trace, closed at %d bytes, crc %08x\n" % (size, crc))


def holds(path: Path) -> bool:
    """Whether a file has a seal and is what it was when it got it."""
    try:
        with path.open("rb") as file:
            found = PATTERN.match(file.read(BYTES))
        return bool(found) and (int(found[2], 16), int(found[1])) == _checksum(path)  # type: ignore[index]
    except OSError:
        return False


def survives(work: Callable[[], object]) -> bool:
    """Whether a child process comes to the end of `work`, by its result or an exception; True where no child can be made."""
    if not hasattr(os, "fork"):
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other threads: the child reads one file and is gone
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIMIT_S)
            _no_core()
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _no_core() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _checksum(path: Path) -> tuple[int, int]:
    """The CRC-32 of a file behind its user block, and the length of the file."""
    crc = 0
    with path.open("rb") as file:
        file.seek(BYTES)
        while part := file.read(PART):
            crc = zlib.crc32(part, crc)
        return crc, file.tell()
