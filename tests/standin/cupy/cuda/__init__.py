"""cupy.cuda: two devices, streams that remember pending work, events, and memory pools that count."""

from __future__ import annotations

import time as _time
from typing import Any as _Any

from cupy import _names, _state

from . import runtime

_DEVICES = 2
_PATIENCE = 10  # questions until an event is done


def is_available() -> bool:
    """Whether there is a device: the stand-in is one."""
    return True


def __getattr__(name: str) -> _Any:
    raise _names.missing("cupy.cuda", name)


class Stream(_state.Stream):
    """A queue of device work."""

    null: Stream

    def __getattr__(self, name: str) -> _Any:
        raise _names.missing("cupy.cuda.Stream", name)

    @property
    def ptr(self) -> int:
        """The handle; 0 is the default stream."""
        return 0 if self._default else id(self)

    @property
    def done(self) -> bool:
        """Whether all work is finished."""
        return self.finished == self.issued

    def synchronize(self) -> None:
        """Wait for all work of this stream."""
        _state.counts.synchronisations += 1
        self.finish()

    def use(self) -> Stream:
        """Make it this thread's stream."""
        _state.use(self)
        return self

    def __enter__(self) -> Stream:
        self._before = [*getattr(self, "_before", []), _state.current()]
        return self.use()

    def __exit__(self, *error: _Any) -> None:
        _state.use(self._before.pop())

    def record(self, event: Event | None = None) -> Event:
        """Mark this place in the queue."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Later work of this stream starts after the event."""
        if event._mark is not None:
            self.wait(*event._mark)


class Event:
    """A place in a stream's queue."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._mark: tuple[_state.Stream, int] | None = None
        self._asked = 0
        self._time = 0.0

    def __getattr__(self, name: str) -> _Any:
        raise _names.missing("cupy.cuda.Event", name)

    def record(self, stream: Stream | None = None) -> None:
        """Mark this place in the queue."""
        on = stream or _state.current()
        self._mark, self._time = (on, on.issued), _time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether the queue has passed it. A device goes on while it is asked: who asks often enough finds it done."""
        if self._mark is None or self._mark[0].finished >= self._mark[1]:
            return True
        self._asked += 1
        if self._asked == _PATIENCE:
            self._mark[0].finish(self._mark[1])
        return False

    def synchronize(self) -> None:
        """Wait until the queue has passed it."""
        _state.counts.synchronisations += 1
        if self._mark is not None:
            self._mark[0].finish(self._mark[1])


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """The time between two events, ms."""
    return 1e3 * (end_event._time - start_event._time)


def get_current_stream(device_id: int | None = None) -> _Any:
    """This thread's stream."""
    return _state.current()


def get_device_id() -> int:
    """This thread's device."""
    return _state.device()


def get_local_runtime_version() -> int:
    """The version of the CUDA runtime."""
    return runtime.runtimeGetVersion()


class Device:
    """A device by its index."""

    def __init__(self, device: int | None = None) -> None:
        self.id = _state.device() if device is None else int(device)

    def __getattr__(self, name: str) -> _Any:
        raise _names.missing("cupy.cuda.Device", name)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def use(self) -> None:
        """Make it this thread's device."""
        runtime.setDevice(self.id)

    def __enter__(self) -> Device:
        self._before = _state.device()
        self.use()
        return self

    def __exit__(self, *error: _Any) -> None:
        _state.use_device(self._before)

    def synchronize(self) -> None:
        """Wait for all work of this thread's stream and of the default stream."""
        _state.counts.synchronisations += 1
        _state.current().finish()
        _state.null.finish()

    compute_capability = "90"
    pci_bus_id = property(lambda self: f"0000:{self.id:02X}:00.0")
    mem_info = property(lambda self: runtime.memGetInfo())


class MemoryPool:
    """The pool of device memory; its bytes are counted from the arrays that live."""

    _limit = 0

    def __getattr__(self, name: str) -> _Any:
        raise _names.missing("cupy.cuda.MemoryPool", name)

    def used_bytes(self) -> int:
        """Bytes of live arrays."""
        return _state.used_bytes()

    total_bytes = used_bytes

    def free_bytes(self) -> int:
        """Bytes kept for later arrays."""
        return 0

    def n_free_blocks(self) -> int:
        """Blocks kept for later arrays."""
        return 0

    def free_all_blocks(self, stream: _Any = None) -> None:
        """Give back what is kept."""

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """At most so many bytes."""
        self._limit = size or 0

    def get_limit(self) -> int:
        """The limit."""
        return self._limit


class PinnedMemoryPool:
    """The pool of page-locked host memory."""

    def __getattr__(self, name: str) -> _Any:
        raise _names.missing("cupy.cuda.PinnedMemoryPool", name)

    def free_all_blocks(self) -> None:
        """Give back what is kept."""

    def n_free_blocks(self) -> int:
        """Blocks kept for later buffers."""
        return 0


def alloc_pinned_memory(size: int) -> memoryview:
    """Page-locked host memory, as a buffer."""
    _state.counts.pinned += 1
    return memoryview(bytearray(b"\xff" * size))  # NaN in every floating-point format


_pool, _pinned_pool = MemoryPool(), PinnedMemoryPool()
Stream.null = Stream(null=True)
_state.null = Stream.null
