"""cupy.cuda.runtime: what the stand-in offers of it."""

from __future__ import annotations

from typing import Any as _Any

from cupy import _names, _state


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime."""


def __getattr__(name: str) -> _Any:
    raise _names.missing("cupy.cuda.runtime", name)


def getDeviceCount() -> int:
    """The number of devices."""
    from cupy import cuda

    return cuda._DEVICES


def getDevice() -> int:
    """This thread's device."""
    return _state.device()


def setDevice(device: int) -> None:
    """Make a device this thread's."""
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    _state.use_device(device)


def getDeviceProperties(device: int) -> dict[str, _Any]:
    """What a device is."""
    return {"name": b"stand-in", "totalGlobalMem": 1 << 33, "major": 9, "minor": 0, "multiProcessorCount": 1}


def deviceSynchronize() -> None:
    """Wait for the device."""
    from cupy import cuda

    cuda.Device().synchronize()


def runtimeGetVersion() -> int:
    """The version of the CUDA runtime: 1000 x major + 10 x minor."""
    return 13000


def driverGetVersion() -> int:
    """The version of the driver: 0, there is none."""
    return 0


def memGetInfo() -> tuple[int, int]:
    """Bytes free and in total."""
    return (1 << 33) - _state.used_bytes(), 1 << 33
