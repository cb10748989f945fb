"""A run that is under way, to be signalled, stopped and killed: `mpirun -n N hpcpar ...` in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from launch import Done, mpirun

RANK = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")
TOKEN = "HPCPAR_TEST_RUN"


class Live:
    """Starts the run; `folder` is its --out. Its processes are found by a mark in their environment."""

    def __init__(self, folder: Path, *arguments: Any, ranks: int, launcher: tuple[str, ...] = (), python: str = sys.executable, **env: str):
        self.folder, self.ranks, self._mark = folder, ranks, uuid.uuid4().hex
        self._out = folder.parent / f"{self._mark}.out"
        self._before = self._steps()
        program = [python, "-m", "hpcpar", "train", *map(str, arguments), "--out", str(folder)]
        command = [*(launcher or (mpirun(),)), "-n", str(ranks), *program]
        with self._out.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **env, TOKEN: self._mark})

    def alive(self) -> dict[int, int]:
        """{process: its rank, -1 for the launcher's own} of what still runs."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"{TOKEN}={self._mark}".encode() in (env := (entry / "environ").read_bytes().split(b"\0")):
                    found[int(entry.name)] = next((int(v.partition(b"=")[2]) for v in env if v.startswith(RANK)), -1)
            except OSError:
                continue
        return found

    def pid(self, rank: int) -> int:
        """The process of a rank, as soon as it is there."""
        return self._until(lambda: next((p for p, r in self.alive().items() if r == rank), 0))

    def after(self, steps: int) -> int:
        """Wait until the run has made so many steps more; the last one that is said."""
        return self._until(lambda: (n := self._steps()) >= self._before + max(1, steps) and n)

    def send(self, rank: int, number: signal.Signals) -> None:
        """A signal to a rank."""
        os.kill(self.pid(rank), number)

    def end(self, timeout: float) -> Done:
        """What it left, once it has ended; nothing of it may still run."""
        code = self.process.wait(timeout)
        until = time.monotonic() + 5
        while (left := self.alive()) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left, f"{left} are left"
        return Done(code, "", self._out.read_text(errors="replace"))

    def close(self) -> None:
        """End what is left, of a test that failed."""
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _steps(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def _until(self, found: Any) -> int:
        end = time.monotonic() + 100
        while not (value := found()):
            assert self.process.poll() is None, self._out.read_text(errors="replace")
            assert time.monotonic() < end, self._out.read_text(errors="replace")
            time.sleep(0.005)
        return value
