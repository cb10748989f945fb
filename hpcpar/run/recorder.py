"""From what happens on a rank to events of its trace.

The communication layer speaks in names ("send", "activation", "pp"), the trace in numbers; the recorder is the one place between them,
and remembers the action in hand, for the trace and for the message of a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

KINDS = {k.name.lower(): int(k) for k in Kind}
OPERATIONS = {o.name.lower(): int(o) for o in Operation}
AXES = {a.name.lower(): int(a) for a in Axis}


class Recorder:
    """Records events of one rank; without a writer (run.trace = "off") it only remembers where the rank is."""

    def __init__(self, writer: Writer | None = None):
        self.writer = writer
        self.step = 0
        self.action: Any = "set-up"  # what this rank is at, for the message of a failure
        self.watch: Callable[[Any], None] | None = None  # told of each action: the watchdog's
        self.peaks: dict[str, int] = {}

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step = step
        if self.writer:
            self.writer.step = step

    def at(self, action: Any) -> None:
        """What this rank does from now on."""
        self.action = action
        if self.watch:
            self.watch(action)

    def message(self, kind: str, start: int, end: int, operation: str = "none", axis: str = "none", **facts: Any) -> None:
        """An event of the communication layer."""
        if self.writer:
            self.writer.record(KINDS[kind], start, end, operation=OPERATIONS[operation], axis=AXES[axis], **facts)

    def pairs(self, block: int, operation: str, axis: str, peers: Sequence[int], sizes: Sequence[int]) -> None:
        """What this rank gave to each peer in an exchange of a block's rows, in bytes."""
        if self.writer:
            self.writer.pairs(block, OPERATIONS[operation], AXES[axis], peers, sizes)

    def compute(self, kind: str, start: int, stage: int = -1, microbatch: int = -1, version: int = -1) -> None:
        """Something that this rank computed since `start`."""
        if self.writer:
            self.writer.record(KINDS[kind], start, time.perf_counter_ns(), stage, microbatch, version)

    def memory(self, kind: str, held: int) -> None:
        """Bytes that this rank holds of a kind, now."""
        if held > self.peaks.get(kind, -1):
            self.peaks[kind] = held
        if self.writer:
            self.writer.memory(kind, held, time.perf_counter_ns())

    def metric(self, name: str, value: float) -> None:
        """A value of the current step."""
        if self.writer:
            self.writer.metric(name, value)

    def flush(self) -> None:
        """What was recorded is on disk."""
        if self.writer:
            self.writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self.writer:
            self.writer.close()
