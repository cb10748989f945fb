"""The array of the stand-in: host memory that behaves like device memory.

It is no subclass of numpy.ndarray, refuses every implicit conversion to one and every mixture with one, and gives away its address
only when no work on it is pending.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import _names, _state

PLACE = "cupy.ndarray"


def wrap(x: Any) -> Any:
    """A NumPy result as an array of the device; scalars become arrays without dims, as on the real device."""
    if isinstance(x, tuple | list):
        return type(x)(wrap(i) for i in x)
    if x is None or isinstance(x, type):
        return x
    out = object.__new__(ndarray)
    out._host = x if isinstance(x, np.ndarray) else np.asarray(x)
    out.base = None
    return out


def unwrap(x: Any) -> Any:
    """The host memory of device arrays, also inside lists and tuples; raises TypeError for NumPy arrays."""
    if isinstance(x, ndarray):
        return x._host
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    if isinstance(x, tuple | list):
        return type(x)(unwrap(i) for i in x)
    return x


def arrays(*values: Any) -> list[np.ndarray]:
    """The host memory of every device array among the values."""
    found = []
    for x in values:
        if isinstance(x, ndarray):
            found.append(x._host)
        elif isinstance(x, tuple | list):
            found += arrays(*x)
    return found


def run(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a NumPy function on device arrays as one piece of device work; a view of an argument is no work."""
    before = arrays(*args, *kwargs.values())
    with np.errstate(all="ignore"):  # a device raises no floating-point warnings
        result = f(*unwrap(args), **{k: unwrap(v) for k, v in kwargs.items()})
    out = kwargs.get("out")
    if out is not None:
        _state.work(*before)
        return out[0] if isinstance(out, tuple) else out
    made = [r for r in (result if isinstance(result, tuple | list) else [result]) if isinstance(r, np.ndarray)]
    if not (made and all(any(_state.allocation(r) is _state.allocation(b) for b in before) for r in made)):
        wrapped = wrap(result)
        _state.work(*before, *arrays(wrapped))
        return wrapped
    return wrap(result)


class Flags:
    """The layout of an array's memory."""

    def __init__(self, host: np.ndarray, owns: bool) -> None:
        self.c_contiguous = host.flags.c_contiguous
        self.f_contiguous = host.flags.f_contiguous
        self.owndata = owns

    def __getitem__(self, name: str) -> bool:
        return {"C_CONTIGUOUS": self.c_contiguous, "F_CONTIGUOUS": self.f_contiguous, "OWNDATA": self.owndata}[name]


class MemoryPointer:
    """The address of an array."""

    def __init__(self, host: np.ndarray) -> None:
        self.ptr = host.ctypes.data
        self.device_id = _state.device()


class ndarray:
    """An array of the device."""

    __module__ = "cupy"
    __array_priority__ = 100
    _host: np.ndarray
    base: Any

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C") -> None:
        if memptr is not None or strides is not None:
            raise _names.NotOffered("the stand-in makes arrays on memory of its own only")
        self._host = unset(np.empty(shape, dtype, order))  # type: ignore[call-overload]
        self.base = None

    def __getattr__(self, name: str) -> Any:
        raise _names.missing(PLACE, name)

    # layout

    shape = property(lambda self: self._host.shape)
    strides = property(lambda self: self._host.strides)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    dtype = property(lambda self: self._host.dtype)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    T = property(lambda self: wrap(self._host.T))
    mT = property(lambda self: wrap(self._host.mT))
    flags = property(lambda self: Flags(self._host, self._host.base is None))
    data = property(lambda self: MemoryPointer(self._host))

    @property
    def device(self) -> Any:
        """The device of the array."""
        return sys.modules["cupy"].cuda.Device(_state.device())

    def __len__(self) -> int:
        return len(self._host)

    # to the outside

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly.")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        _state.hand_over(self._host)
        host = self._host
        return {
            "shape": host.shape,
            "typestr": host.dtype.str,
            "descr": host.dtype.descr,
            "stream": 1,
            "version": 3,
            "strides": None if host.flags.c_contiguous else host.strides,
            "data": (host.ctypes.data if host.size else 0, False),
        }

    def __dlpack__(self, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        _state.hand_over(self._host)
        return self._host.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, _state.device())  # CUDA

    def get(self, stream: Any = None, order: str = "C", out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        """A copy on the host, in stream order; the host waits for it, unless not `blocking`."""
        queue = stream or _state.current()
        _state.counts.to_host += 1
        if _state.allocation(self._host).busy(but=queue):
            raise _state.Unsynchronised("another stream than the copy's has pending work on the array")
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
            if out.dtype != self.dtype:
                raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
            if out.shape != self.shape:
                raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}")
            if not (out.flags.c_contiguous or out.flags.f_contiguous):
                raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        else:
            out = np.empty(self.shape, self.dtype, order=order)  # type: ignore[call-overload]
        out[...] = self._host
        _state.work(self._host, on=queue)
        if blocking:
            queue.finish()
        return out

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        """Copy from the host, in stream order."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if not (self._host.flags.c_contiguous or self._host.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        _state.counts.to_device += 1
        _state.work(self._host, on=stream)
        self._host[...] = arr

    def item(self) -> Any:
        """The one element."""
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def tolist(self) -> Any:
        """Nested lists."""
        return self.get().tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        """The bytes."""
        return self.get().tobytes(order)

    def __reduce__(self) -> Any:
        return (sys.modules["cupy"].array, (self.get(),))

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()  # type: ignore[attr-defined]

    def __copy__(self) -> ndarray:
        return self.copy()  # type: ignore[attr-defined]

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    def __format__(self, spec: str) -> str:
        return format(self.get(), spec)

    # NumPy's functions come to cupy's, as with the real array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or ufunc.__name__ not in _names.table()["cupy"]:
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        return getattr(sys.modules["cupy"], ufunc.__name__)(*inputs, **kwargs)

    def __array_function__(self, f: Any, types: Any, args: Any, kwargs: Any) -> Any:
        here: Any = sys.modules["cupy"]
        for part in f.__module__.split(".")[1:]:
            here = getattr(here, part, None)
        if any(t not in (ndarray, np.ndarray) for t in types) or f.__name__ not in _names.table().get(getattr(here, "__name__", ""), {}):
            return NotImplemented
        return getattr(here, f.__name__)(*args, **kwargs)

    # elements

    def __iter__(self) -> Iterator[ndarray]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> ndarray:
        key, advanced = _key(key)
        view = self._host[key] if advanced else self._host[(*key, ...) if not any(k is Ellipsis for k in key) else key]
        out = wrap(view)
        if advanced:
            _state.work(self._host, out._host)
        return out

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            if not (isinstance(key, slice) and key == slice(None) and value.shape == self.shape and value.dtype == self.dtype):
                raise ValueError("copying a numpy.ndarray to a cupy.ndarray by slice assignment needs [:], the same shape and dtype")
            self.set(value)
            return
        if isinstance(value, list | tuple):
            raise TypeError(f"Unsupported type {type(value)}")
        key, _ = _key(key)
        self._host[key] = unwrap(value)
        _state.work(self._host, *arrays(value))


def _key(key: Any) -> tuple[tuple[Any, ...], bool]:
    """The key in host terms, and whether it is advanced: makes a copy. Lists and NumPy arrays of indices are copied to the device."""
    parts, advanced = [], False
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, list | np.ndarray):
            _state.counts.to_device += 1
        if isinstance(k, ndarray | list | np.ndarray | bool | np.bool_):
            advanced = True
        parts.append(k._host if isinstance(k, ndarray) else k)
    return tuple(parts), advanced


def unset(host: np.ndarray) -> np.ndarray:
    """Fill memory that nobody has written with what is seen at once: NaN, or a large number."""
    if host.dtype.kind in "fc":
        host.fill(np.nan)
    elif host.dtype.kind in "iu":
        host.fill(np.iinfo(host.dtype).max - 5)
    return host
