"""A run that stands still says where every rank is, and ends. run.watchdog_s = 0: no watchdog.

    every action      rank 2 notes "step 57, 3F0" in DIR/.watchdog/00002, a file in memory that others can read
    its thread        beats there too, with what the rank waits for
    nothing moved     on any rank for watchdog_s: the first to see it prints all files; all ranks end, exit code 1
    for watchdog_s

A rank that was stopped (SIGSTOP) or hangs cannot answer: its last action is there, and its beat stands still. A rank that does not end by
itself within `GRACE_S` is ended by its thread. On one node the actions are exact; of other nodes they are as old as the file system's
caches and the last beat. `watchdog_s` must be longer than the longest action: a checkpoint, an evaluation's forward.
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hpcpar.comm.world import World
from hpcpar.errors import Aborted
from hpcpar.run.recorder import Recorder
from hpcpar.run.status import Status

FOLDER, REPORT = ".watchdog", "report"
AT = struct.Struct("<qq48s")  # actions so far, step, action: by the rank
BEAT = struct.Struct("<qd40s320s")  # beats so far, its time (unix s), host, what is waited for: by its thread
FIRST = 64  # where the beat lies
LENGTH = 512
GRACE_S = 10.0  # longer than alarm.PATIENCE_S


class Watchdog:
    """Watches all ranks of the world from this one; collective. Raises OSError where the folder cannot be written."""

    def __init__(self, world: World, recorder: Recorder, status: Status, folder: Path, seconds: float):
        self.world, self.recorder, self.status, self.seconds = world, recorder, status, seconds
        self._folder = folder / FOLDER
        if world.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
        world.barrier()
        file = self._folder / _name(world.rank)
        file.write_bytes(bytes(LENGTH))  # written, not only reserved: a full disk is said here, and not by a fault in memory
        with file.open("r+b") as f:
            self._map = mmap.mmap(f.fileno(), LENGTH)
        self._actions, self._beats, self._hung = 0, 0, ""
        self._pause = min(1.0, max(0.05, seconds / 8))
        self._look = 2 * self._pause + 0.5  # every beat that goes on is seen to within this
        self._over = threading.Event()
        self._beat()
        world.barrier()
        recorder.watch = self._at
        self._inner = world.waiter.check
        world.waiter.check = self._check
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; collective."""
        self._over.set()
        self._thread.join()
        self.recorder.watch, self.world.waiter.check = None, self._inner
        self.world.barrier()
        if self.world.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _at(self, action: Any) -> None:
        self._actions += 1
        AT.pack_into(self._map, 0, self._actions, self.recorder.step, str(action).encode()[:48])

    def _check(self) -> None:
        self._inner()
        if self._hung:
            raise Aborted(self._hung)

    def _beat(self) -> None:
        self._beats += 1
        awaited = self.world.waiter.awaited
        text = awaited().encode() if awaited else b""
        BEAT.pack_into(self._map, FIRST, self._beats, time.time(), socket.gethostname().encode()[:40], text[:320])
        self._map.flush()

    def _run(self) -> None:
        seen, since, everyone, still = -1, 0.0, None, 0.0
        while not self._over.wait(self._pause):
            self._beat()
            now = time.monotonic()
            if self._actions != seen:
                seen, since, everyone = self._actions, now, None
            elif now - since >= self.seconds / 2:  # only now are the others looked at
                found = [actions for actions, *_ in self._all()]
                if found != everyone:
                    everyone, still = found, now
                elif now - since >= self.seconds and now - still >= self.seconds / 2:
                    self._end()
                    return

    def _end(self) -> None:
        text = f"nothing has moved for {self.seconds:g} s (run.watchdog_s)"
        try:
            (self._folder / REPORT).touch(exist_ok=False)  # by the first
        except FileExistsError:  # the first looks at the beats of all: they go on until it has
            end = time.monotonic() + 2 * self._look
            while time.monotonic() < end and not self._over.wait(self._pause):
                self._beat()
        else:
            sys.stderr.write(f"\nhpcpar: {text}; where every rank is:\n{self._table()}hpcpar: all ranks are ended\n")
            sys.stderr.flush()
            self.status.end("failed", 1, text)
        self._hung = text
        if not self._over.wait(GRACE_S):
            sys.stderr.write(f"hpcpar: rank {self.world.rank} did not end by itself: it computes, or hangs in a library\n")
            sys.stderr.flush()
            os._exit(1)

    def _all(self) -> list[tuple[int, int, bytes, int, float, bytes, bytes]]:
        raw = [(self._folder / _name(r)).read_bytes() for r in range(self.world.size)]
        return [AT.unpack_from(x) + BEAT.unpack_from(x, FIRST) for x in raw]

    def _table(self) -> str:
        before = [beats for _, _, _, beats, *_ in self._all()]
        time.sleep(self._look)
        lines = []
        for r, (_, step, action, beats, when, host, awaited) in enumerate(self._all()):
            dead = (
                f", stopped or dead: its last sign was {time.time() - when:.0f} s ago"
                if beats == before[r] and r != self.world.rank
                else ""
            )
            wait = f", waits for {_text(awaited)}" if _text(awaited) and not dead else ""
            lines.append(f"  rank {r} on {_text(host)}: step {step}, action {_text(action)}{wait}{dead}\n")
        return "".join(lines)


def _name(rank: int) -> str:
    return f"{rank:05d}"


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
