"""How a run stands, for who looks at its folder: status.json, written whole or not at all.

    {"state": "running", "step": 57, "steps": 200, "reason": "", "code": null, "host": "n1", "pid": 4711, "job": "17", ...}

    running --> ended (0) | requeue (85: stopped by a signal, saved) | failed (1)
            --> lost     says running, but nobody holds the folder: killed, or its machine stopped. Nobody could write that; `read` finds it

Rank 0 writes; of a failure, the rank that failed. It needs neither MPI nor arrays, and neither does `read`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from hpcpar.run.lock import Lock, holder

NAME = "status.json"
EVERY_S = 5.0  # between two writings while it runs
LOST = "no process holds the folder: it was killed, or its machine stopped"


class Status:
    """What this rank says of the run in `folder`, which `take` names."""

    def __init__(self, rank: int, ranks: int):
        self._rank = rank
        self._folder: Path | None = None
        self._lock: Lock | None = None
        self._said: dict[str, Any] = {"state": "running", "step": 0, "steps": 0, "reason": "", "code": None, "ranks": ranks}
        self._start, self._written = time.time(), 0.0

    def take(self, folder: Path) -> None:
        """The folder is this run's; raises PlanError on rank 0 if another run holds it."""
        if self._rank == 0:
            self._lock = Lock(folder)
        self._folder = folder

    def release(self) -> None:
        """The folder is free again."""
        if self._lock:
            self._lock.release()
        self._lock = None

    def begin(self, step: int, steps: int) -> None:
        """Steps up to `step` of `steps` are done, and others follow. Raises OSError where that cannot be written."""
        self._said.update(step=step, steps=steps)
        if self._rank == 0:
            self._write()

    def step(self, step: int) -> None:
        """Step `step` is done. Raises OSError where that cannot be written."""
        self._said["step"] = step
        if self._rank == 0 and time.monotonic() - self._written > EVERY_S:
            self._write()

    def end(self, state: str, code: int, reason: str) -> None:
        """The run is over; nothing is written for a folder that was never taken. What cannot be written is said."""
        if self._folder is None:
            return
        self._said.update(state=state, code=code, reason=reason)
        try:
            self._write()
        except OSError as e:
            print(f"hpcpar: {self._folder / NAME} cannot be written: {e.strerror or e}", file=sys.stderr, flush=True)

    def _write(self) -> None:
        assert self._folder is not None
        slurm = {"job": os.environ.get("SLURM_JOB_ID"), "restart": int(os.environ.get("SLURM_RESTART_COUNT") or 0)}
        fields = {**self._said, "host": socket.gethostname(), "pid": os.getpid(), **slurm, "start": self._start, "time": time.time()}
        fresh = self._folder / f".{NAME}.{self._rank}.new"
        fresh.write_text(json.dumps(fields, indent=1) + "\n")
        fresh.replace(self._folder / NAME)
        self._written = time.monotonic()


def read(folder: Path, watch: bool = True) -> dict[str, Any] | None:
    """How the run in a folder stands; None where there is none. A run that nobody holds any more is "lost".

    Where the file system cannot tell whether it is held, its beat is watched for some seconds; without `watch` it counts as running.
    """
    try:
        found = json.loads((folder / NAME).read_text())
    except (OSError, ValueError):
        return None
    if found["state"] == "running" and holder(folder, watch) is None:
        found |= {"state": "lost", "reason": LOST}
    return found
