"""What a test may ask the stand-in: how often streams were synchronised, and whether memory was handed out while work was pending.

Device work is done at once, but it is remembered as pending on the stream that it was given to, until that stream is synchronised.
Handing the address of device memory to someone outside (MPI reads it through DLPack or the CUDA array interface) while work on that
memory is pending is what gives wrong values on a GPU, now and then. Here it raises, always.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np


class Unsynchronised(RuntimeError):
    """Device memory left the stream's order while work on it was pending."""


class Stream:
    """A queue of device work; `issued` counts what was given to it, `finished` how much of that is known to be done."""

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None) -> None:
        self.issued = 0
        self.finished = 0
        self._default = null
        self.waits: list[tuple[Stream, int]] = []
        self.follows: dict[Stream, int] = {}  # later work of this stream comes after the work of others up to these

    def wait(self, stream: Stream, tick: int) -> None:
        """Later work comes after that of `stream` up to `tick`, and after what that one follows."""
        self.issued += 1
        self.waits.append((stream, tick))
        for s, then in ((stream, tick), *stream.follows.items()):
            self.follows[s] = max(then, self.follows.get(s, 0))

    def finish(self, tick: int | None = None) -> None:
        """All work up to `tick` is done, and with all of it what the stream was told to wait for."""
        self.finished = max(self.finished, self.issued if tick is None else tick)
        if self.finished == self.issued:
            waits, self.waits = self.waits, []
            for stream, then in waits:
                stream.finish(then)


class Allocation:
    """The device memory below one or many arrays; `pending` holds the last piece of work of each stream on it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.pending: dict[Stream, int] = {}

    def busy(self, but: Stream | None = None) -> bool:
        """Whether a stream (other than `but`, and not with work that `but` waits for) may still be at work on this memory."""
        self.pending = {s: tick for s, tick in self.pending.items() if tick > s.finished}
        return any(s is not but and (but is None or but.follows.get(s, 0) < tick) for s, tick in self.pending.items())


class Counts:
    """How often something happened since the last `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again at zero."""
        self.synchronisations = 0  # explicit ones, of streams, events and devices
        self.handed_over = 0  # device addresses given away through DLPack or the CUDA array interface
        self.to_host = 0  # explicit copies
        self.to_device = 0
        self.pinned = 0  # page-locked buffers allocated


counts = Counts()
null = Stream(null=True)
_here = threading.local()
_allocations: dict[int, Allocation] = {}
_freed_early: list[int] = []  # bytes of memory that was freed while a stream was at work on it


def current() -> Stream:
    """The stream of this thread."""
    return getattr(_here, "stream", null)


def use(stream: Stream) -> None:
    """Make a stream this thread's."""
    _here.stream = stream


def device() -> int:
    """The index of this thread's device."""
    return getattr(_here, "device", 0)


def use_device(index: int) -> None:
    """Make a device this thread's."""
    _here.device = index


def allocation(array: np.ndarray) -> Allocation:
    """The memory below an array: the same for all its views."""
    root: Any = array
    while getattr(root, "base", None) is not None:
        root = root.base
    key = id(root)
    if key not in _allocations:
        _allocations[key] = Allocation(getattr(root, "nbytes", array.nbytes))
        weakref.finalize(root, _free, key)
    return _allocations[key]


def _free(key: int) -> None:
    """Memory goes back to its pool, from where later work of the current stream may have it at once."""
    freed = _allocations.pop(key, None)
    if freed is not None and freed.busy(but=current()):
        _freed_early.append(freed.nbytes)


def used_bytes() -> int:
    """The bytes of all live allocations."""
    return sum(a.nbytes for a in list(_allocations.values()))


def work(*arrays: np.ndarray, on: Stream | None = None) -> None:
    """Give a stream (the current one) a piece of work that reads or writes these arrays.

    Raises Unsynchronised where another stream is at work on them that it does not wait for, or was on memory that is free by now.
    """
    stream = on or current()
    if _freed_early:
        raise Unsynchronised(f"{_freed_early.pop()} bytes of device memory were freed while another stream was at work on them")
    if any(allocation(array).busy(but=stream) for array in arrays):
        raise Unsynchronised("another stream has pending work on an array, and this one does not wait for it; use wait_event")
    stream.issued += 1
    for array in arrays:
        allocation(array).pending[stream] = stream.issued


def hand_over(array: np.ndarray) -> None:
    """Someone outside takes the address; raises Unsynchronised while work on that memory is pending."""
    counts.handed_over += 1
    if allocation(array).busy():
        raise Unsynchronised(
            f"the address of a device array of shape {array.shape} was taken while its stream has pending work on it; "
            "synchronise the stream before every MPI call that touches device memory, receive buffers included"
        )
