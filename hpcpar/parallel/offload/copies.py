"""Copies between host and device beside the computation: on a thread of their own, or on a stream of their own.

    CPU    submit ---> | thread: copy, copy, copy |           whoever needs a copy waits until the thread is through with it
    GPU    the copy stream waits for what was computed so far, copies, marks an event;
           the stream that computes waits for that event where it needs the copy: the host waits for neither

Copies run in the order in which they were started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

Pairs = Sequence[tuple[Any, Any]]  # (from, to)


class Copy(Protocol):
    """A copy that was started."""

    def done(self) -> bool:
        """Whether it is complete; raises what went wrong in it."""

    def usable(self) -> bool:
        """Whether work that is given to the device from now on sees it."""

    def span(self) -> tuple[int, int]:
        """When it ran, in ns of time.perf_counter_ns; of one that is done."""


class Copies(Protocol):
    """Starts copies."""

    def to_device(self, pairs: Pairs) -> Copy:
        """Start to copy host arrays into device arrays."""

    def to_host(self, pairs: Pairs) -> Copy:
        """Start to copy device arrays into host arrays."""


def copies_for(xp: Any) -> Copies:
    """The thread for NumPy's arrays, the stream for a device's."""
    return ThreadCopies() if xp is np else StreamCopies(xp)


class ThreadCopies:
    """One thread; it ends with this object."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "offload")

    def to_device(self, pairs: Pairs) -> Copy:
        """Start to copy host arrays into the arrays that stand for the device's."""
        return _Threaded(self._pool.submit(copy, tuple(pairs)))

    to_host = to_device


def copy(pairs: Pairs) -> tuple[int, int]:
    """Copy each array of the pairs into the other; returns the start and the end in ns."""
    start = time.perf_counter_ns()
    for source, target in pairs:
        target[...] = source
    return start, time.perf_counter_ns()


class _Threaded:
    def __init__(self, future: Future[tuple[int, int]]):
        self._future = future

    def done(self) -> bool:
        if not self._future.done():
            time.sleep(0)  # whoever polls holds the interpreter's lock, and the thread needs it between arrays
            return False
        self._future.result()
        return True

    usable = done

    def span(self) -> tuple[int, int]:
        return self._future.result()


class StreamCopies:
    """One stream of the current device; host arrays are pinned, else their copies would not run beside anything."""

    def __init__(self, xp: Any) -> None:
        self._cuda = xp.cuda
        self._stream = xp.cuda.Stream(non_blocking=True)
        self._base = self._stream.record(xp.cuda.Event())
        self._base.synchronize()
        self._base_ns = time.perf_counter_ns()  # the device's clock on the host's

    def to_device(self, pairs: Pairs) -> Copy:
        """Start to copy pinned host arrays into device arrays."""
        return self._start(pairs, lambda source, target: target.set(source, stream=self._stream))

    def to_host(self, pairs: Pairs) -> Copy:
        """Start to copy device arrays into pinned host arrays."""
        return self._start(pairs, lambda source, target: source.get(stream=self._stream, out=target, blocking=False))

    def _start(self, pairs: Pairs, move: Callable[[Any, Any], Any]) -> Copy:
        # What computes on these arrays, or did on the memory that they now have, comes first.
        self._stream.wait_event(self._cuda.get_current_stream().record())
        start = self._stream.record(self._cuda.Event())
        for source, target in pairs:
            move(source, target)
        return _Streamed(self, start, self._stream.record(self._cuda.Event()), pairs)

    def at_ns(self, event: Any) -> int:
        """When an event came, on the host's clock."""
        return self._base_ns + int(1e6 * self._cuda.get_elapsed_time(self._base, event))

    def follow(self, event: Any) -> None:
        """What is computed from now on comes after the event."""
        self._cuda.get_current_stream().wait_event(event)


class _Streamed:
    def __init__(self, of: StreamCopies, start: Any, end: Any, arrays: Any):
        self._of, self._start, self._end = of, start, end
        self._arrays = arrays  # alive until the copy is done

    def done(self) -> bool:
        if not self._end.done:
            return False
        self._arrays = None
        return True

    def usable(self) -> bool:
        self._of.follow(self._end)
        return True

    def span(self) -> tuple[int, int]:
        return self._of.at_ns(self._start), self._of.at_ns(self._end)
