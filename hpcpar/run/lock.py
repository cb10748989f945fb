"""One run at a time in a folder: the file `lock`, held by rank 0.

    {"host": "n1", "pid": 4711, "job": "17", "since": 1700000000.0, "beat": 42}

Who holds it has an flock on it, which ends with the process however that ends: on local file systems, NFSv4 and Lustre mounted with
`flock` this alone decides. Where flock is refused (Lustre without it) or may be seen on one node alone (`localflock`, old NFS), the beat
decides: the holder moves it every `BEAT_S`, and a newcomer watches it for `WATCH_S`. Contents are compared, not times: clocks of nodes
differ. There a holder that was stopped (SIGSTOP) for longer than that looks dead.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError

NAME = "lock"
BEAT_S, WATCH_S = 5.0, 12.0
LENGTH = 512  # bytes; a beat overwrites them in place
UNKNOWN = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # the file system has no flock


class Lock:
    """Holds `folder` until `release`; raises PlanError, which names the holder, where another process has it."""

    def __init__(self, folder: Path):
        self._path = folder / NAME
        self._about = {"host": socket.gethostname(), "pid": os.getpid(), "job": os.environ.get("SLURM_JOB_ID"), "since": time.time()}
        self._beats = 0
        self._file = self._taken()
        self._write()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the folder back."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()
        os.close(self._file)

    def _taken(self) -> int:
        """A descriptor of the lock file, which is this process's."""
        while True:
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                self._remove_stale()
                continue
            if _flock(file, fcntl.LOCK_EX) is not False and _same(file, self._path):
                return file
            os.close(file)  # another one looked at the fresh file and took it for a dead run's

    def _remove_stale(self) -> None:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            locked, before = _flock(file, fcntl.LOCK_EX), _raw(self._path)
            if locked is False or not (_certain(locked, before) or _still(self._path, before)):
                raise PlanError(f"--out {self._path.parent} is in use by {_named(before)}; wait for its end, or name another folder")
            if _same(file, self._path):
                self._path.unlink()
        finally:
            os.close(file)

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            with suppress(OSError):  # a full disk is said by what loses something by it
                self._write()

    def _write(self) -> None:
        self._beats += 1
        os.pwrite(self._file, json.dumps({**self._about, "beat": self._beats}).encode().ljust(LENGTH), 0)


def holder(folder: Path, watch: bool = True) -> dict[str, Any] | None:
    """Who holds a folder; None if nobody does. Without `watch` a beat is taken for alive where flock cannot tell."""
    try:
        file = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        locked, before = _flock(file, fcntl.LOCK_SH), _raw(folder / NAME)
    finally:
        os.close(file)
    if locked is not False and (_certain(locked, before) or (watch and _still(folder / NAME, before))):
        return None
    return _parsed(before)


def _flock(file: int, kind: int) -> bool | None:
    """Whether the lock was got; None where the file system cannot say. Whoever only looks holds it for a moment: tried more than once."""
    for _ in range(5):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except OSError as e:
            if e.errno in UNKNOWN:
                return None
            time.sleep(0.05)
    return False


def _certain(locked: bool | None, before: bytes) -> bool:
    """Whether a lock that was got proves that the holder is gone: it was a process of this host."""
    return bool(locked) and _parsed(before).get("host") == socket.gethostname()


def _still(path: Path, before: bytes) -> bool:
    """Whether the beat stands still."""
    end = time.monotonic() + WATCH_S
    while time.monotonic() < end:
        time.sleep(BEAT_S / 10)
        if _raw(path) != before:
            return False
    return True


def _raw(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()  # opened anew: NFS then asks the server
    return b""


def _parsed(raw: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        return json.loads(raw)
    return {}


def _same(file: int, path: Path) -> bool:
    with suppress(OSError):
        return os.fstat(file).st_ino == path.stat().st_ino
    return False


def _named(raw: bytes) -> str:
    about = _parsed(raw)
    if not about:
        return "a run that is just starting"
    job = f" (job {about['job']})" if about.get("job") else ""
    return f"process {about['pid']} on {about['host']}{job} since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(about['since']))}"
