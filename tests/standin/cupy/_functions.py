"""The functions of the stand-in, made from NumPy's and held to the real module's names and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _names, _state
from ._array import arrays, ndarray, run, unset, unwrap, wrap

UFUNCS = [n for n in _names.table()["cupy"] if isinstance(of := getattr(np, n, None), np.ufunc) and of.signature is None]
FUNCTIONS = """
    all allclose amax amin any append argmax argmin argsort argwhere around array_equal atleast_1d atleast_2d average bincount
    broadcast_arrays broadcast_to clip column_stack concatenate copy count_nonzero cumprod cumsum diag diagonal diff dot dstack
    expand_dims flatnonzero flip hstack inner isclose kron linspace matmul max mean median min moveaxis nan_to_num nansum nonzero
    ones_like outer pad partition prod ravel repeat reshape roll round searchsorted sort split squeeze stack std sum swapaxes take
    take_along_axis tensordot tile trace transpose tril triu unique var vdot vstack zeros_like
""".split()  # noqa: SIM905
PLAIN = "can_cast common_type isscalar iterable issubdtype ndim promote_types result_type shape size".split()  # noqa: SIM905
FRESH = ["eye", "identity", "indices", "tri"]  # from numbers alone
REDUCED = {"add": "sum", "multiply": "prod"}  # the only ufuncs whose reduce the real module has


class ufunc:
    """An element-wise function: device arrays and scalars only; `out`, `dtype` and `casting` are its only keywords."""

    __module__ = "cupy"

    def __init__(self, name: str) -> None:
        self.__name__ = f"cupy_{name}"
        self._of: np.ufunc = getattr(np, name)
        self.nin, self.nout, self.nargs = self._of.nin, self._of.nout, self._of.nargs

    def __getattr__(self, name: str) -> Any:
        raise _names.missing("cupy.ufunc", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        unknown = {k: v for k, v in kwargs.items() if k not in ("out", "dtype", "casting")}
        if unknown:
            raise TypeError(f"Wrong arguments {unknown}")
        if len(args) > self.nin:  # an output by position
            args, kwargs["out"] = args[: self.nin], args[self.nin]
        for x in args:
            if not isinstance(x, ndarray | bool | int | float | complex | np.generic):
                raise TypeError(f"Unsupported type {type(x)}")
        out = kwargs.pop("out", None)
        if isinstance(out, tuple):
            (out,) = out
        if out is None:
            return run(self._of, *args, **kwargs)
        if not isinstance(out, ndarray):
            raise TypeError(f"return arrays must be of cupy.ndarray, not {type(out)}")
        return run(self._of, *args, out=out, **kwargs)

    def reduce(self, array: ndarray, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The reduction, which the real one has for add and multiply."""
        name = self.__name__.removeprefix("cupy_")
        if name not in REDUCED:
            raise NotImplementedError(f"`{self.__name__}.reduce` is not supported yet")  # the real one's own words
        return getattr(array, REDUCED[name])(axis, dtype, out, keepdims)

    def at(self, a: ndarray, indices: Any, b: Any = None) -> None:
        """Unbuffered and in place, with atomics on a real device: the order of additions is not fixed there."""
        if self.__name__ not in ("cupy_add", "cupy_subtract", "cupy_maximum", "cupy_minimum"):
            raise NotImplementedError(f"`{self.__name__}.at` is not supported yet")
        self._of.at(a._host, unwrap(indices), unwrap(b))
        _state.work(a._host, *arrays(indices, b))


def function(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function on device arrays, with the parameters that the real module's has."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _names.check("cupy", name, *args, **kwargs)
        return run(of, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "cupy"
    return call


def plain(name: str) -> Callable[..., Any]:
    """A function that looks at types and shapes only."""
    of = getattr(np, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return of(*(x._host if isinstance(x, ndarray) else x for x in args), **kwargs)

    call.__name__ = name
    return call


def fresh(name: str) -> Callable[..., Any]:
    """A function that makes an array from numbers; that is device work."""
    of = getattr(np, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        _names.check("cupy", name, *args, **kwargs)
        return _worked(of(*unwrap(args), **kwargs))

    call.__name__ = name
    return call


def _worked(host: Any) -> Any:
    out = wrap(host)
    _state.work(*arrays(out))
    return out


def array(
    obj: Any, dtype: Any = None, copy: bool = True, order: Any = "K", subok: bool = False, ndmin: int = 0, *, blocking: bool = False
) -> Any:
    """A new device array: the one place, with asarray, where host memory may come in."""
    if isinstance(obj, ndarray):
        return run(np.array, obj, dtype=dtype, copy=copy or None, order=order, ndmin=ndmin)
    if isinstance(obj, list | tuple) and arrays(obj):
        return run(np.array, obj, dtype=dtype, order=order, ndmin=ndmin)
    _state.counts.to_device += 1
    host = np.array(obj, dtype=dtype, order=order, ndmin=ndmin)
    if host.dtype.kind not in "biufc":
        raise ValueError(f"Unsupported dtype {host.dtype}")
    return _worked(host)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None, blocking: bool = False) -> Any:
    """A device array; the same one where nothing has to change."""
    if isinstance(a, ndarray) and not copy and (dtype is None or a.dtype == np.dtype(dtype)):
        return a
    return array(a, dtype, copy=bool(copy), order=order or "K", blocking=blocking)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """A device array in C order; the same one where nothing has to change."""
    if isinstance(a, ndarray) and a.flags.c_contiguous and (dtype is None or a.dtype == np.dtype(dtype)):
        return a
    return array(a, dtype, order="C")


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> np.ndarray:
    """A copy on the host."""
    if isinstance(a, ndarray):
        return a.get(stream=stream, order=order, out=out, blocking=blocking)
    host = np.asarray(a, order=order)  # type: ignore[call-overload]
    if out is None:
        return host
    out[...] = host
    return out


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Memory that nobody has written: NaN here, anything there. No device work."""
    return ndarray(shape, dtype, order=order)


def empty_like(prototype: ndarray, dtype: Any = None, order: Any = "K", subok: None = None, shape: Any = None) -> Any:
    """Memory that nobody has written, of a like shape."""
    return wrap(unset(np.empty_like(unwrap(prototype), dtype, order, shape=shape)))  # type: ignore[arg-type]


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Zeros."""
    return _worked(np.zeros(shape, dtype, order))  # type: ignore[call-overload]


def ones(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Ones."""
    return _worked(np.ones(shape, dtype, order))  # type: ignore[call-overload]


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    """One value everywhere."""
    return _worked(np.full(shape, unwrap(fill_value), dtype, order))  # type: ignore[call-overload]


def full_like(a: ndarray, fill_value: Any, dtype: Any = None, order: Any = "K", subok: None = None, shape: Any = None) -> Any:
    """One value everywhere, of a like shape."""
    return _worked(np.full_like(unwrap(a), unwrap(fill_value), dtype, order, shape=shape))


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """Equal steps."""
    return _worked(np.arange(start, dtype=dtype) if stop is None else np.arange(start, stop, step, dtype=dtype))


def where(condition: ndarray, x: Any = None, y: Any = None) -> Any:
    """x where the condition holds, else y."""
    if (x is None) != (y is None):
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    return run(np.where, condition.astype("?", copy=False), *([] if x is None else [x, y]))  # type: ignore[attr-defined]


def einsum(*operands: Any, **kwargs: Any) -> Any:
    """Sums of products; the real one takes no `out`."""
    unknown = [k for k in kwargs if k not in ("dtype", "optimize")]
    if unknown:
        raise TypeError(f"Did not understand the following kwargs: {unknown}")
    return run(np.einsum, *operands, **kwargs)


def copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Copy within the device, or a scalar to it."""
    if not isinstance(dst, ndarray):
        raise TypeError(f"Unsupported type {type(dst)}")
    if isinstance(src, np.ndarray) and src.size != 1:
        raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
    source = src._host if isinstance(src, ndarray) else src
    np.copyto(dst._host, source, casting=casting, where=True if where is None else unwrap(where))  # type: ignore[arg-type]
    _state.work(dst._host, *arrays(src, where))


def shares_memory(a: ndarray, b: ndarray, max_work: Any = None) -> bool:
    """Whether two arrays have an element in common."""
    return np.shares_memory(a._host, b._host)


def may_share_memory(a: ndarray, b: ndarray, max_work: Any = None) -> bool:
    """Whether two arrays may have an element in common."""
    return np.may_share_memory(a._host, b._host)


def get_array_module(*args: Any) -> Any:
    """This module if an argument is a device array, else numpy."""
    import cupy

    return cupy if any(isinstance(x, ndarray) for x in args) else np
