"""A stand-in for cupyx: page-locked host arrays and scatter_add."""

from __future__ import annotations

from math import prod as _prod
from typing import Any as _Any

import numpy as _np
from cupy import _names, _state
from cupy import cuda as _cuda
from cupy._array import arrays as _arrays
from cupy._array import ndarray as _ndarray
from cupy._array import unwrap as _unwrap


def __getattr__(name: str) -> _Any:
    raise _names.missing("cupyx", name)


def empty_pinned(shape: _Any, dtype: _Any = float, order: _Any = "C") -> _np.ndarray:
    """A NumPy array in page-locked memory that nobody has written."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = _cuda.alloc_pinned_memory(_prod(shape) * _np.dtype(dtype).itemsize)
    return _np.ndarray(shape, dtype, memory, order=order)


def zeros_pinned(shape: _Any, dtype: _Any = float, order: _Any = "C") -> _np.ndarray:
    """Zeros in page-locked memory."""
    out = empty_pinned(shape, dtype, order)
    out.fill(0)
    return out


def empty_like_pinned(a: _Any, dtype: _Any = None, order: str = "K", subok: None = None, shape: _Any = None) -> _np.ndarray:
    """A NumPy array in page-locked memory, of a like shape."""
    return empty_pinned(a.shape if shape is None else shape, dtype or a.dtype)


def scatter_add(a: _ndarray, slices: _Any, value: _Any) -> None:
    """Add at indices, with atomics on a real device: the order of additions is not fixed there."""
    _np.add.at(a._host, _unwrap(slices), _unwrap(value))
    _state.work(a._host, *_arrays(slices, value))


def rsqrt(x: _Any) -> _Any:
    """1 / sqrt(x)."""
    import cupy

    return cupy.reciprocal(cupy.sqrt(x))
