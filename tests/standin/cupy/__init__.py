"""A stand-in for the module cupy on a machine without a GPU, for tests only (PYTHONPATH=tests/standin).

Host memory that behaves like device memory where programs go wrong: no implicit conversion to NumPy, no mixing with NumPy arrays, no
name and no parameter that the real module lacks (names.txt), and no address given to MPI while the stream has pending work on it.
"""

from __future__ import annotations

from typing import Any as _Any

import numpy as _np

from . import _functions, _names, _operators, _state, cuda, linalg
from ._array import ndarray
from ._functions import (
    arange,
    array,
    asarray,
    ascontiguousarray,
    asnumpy,
    copyto,
    einsum,
    empty,
    empty_like,
    full,
    full_like,
    get_array_module,
    may_share_memory,
    ones,
    shares_memory,
    ufunc,
    where,
    zeros,
)

__version__ = "14.2.0"
asanyarray = asarray
is_available = cuda.is_available
bool_, int8, int16, int32, int64, intp = _np.bool_, _np.int8, _np.int16, _np.int32, _np.int64, _np.intp
uint8, uint16, uint32, uint64 = _np.uint8, _np.uint16, _np.uint32, _np.uint64
float16, float32, float64, complex64, complex128 = _np.float16, _np.float32, _np.float64, _np.complex64, _np.complex128
dtype, generic, number, integer, floating, finfo, iinfo = (
    _np.dtype, _np.generic, _np.number, _np.integer, _np.floating, _np.finfo, _np.iinfo,
)  # fmt: skip
inexact, signedinteger, unsignedinteger = _np.inexact, _np.signedinteger, _np.unsignedinteger
pi, e, inf, nan, newaxis = _np.pi, _np.e, _np.inf, _np.nan, None


def get_default_memory_pool() -> cuda.MemoryPool:
    """The pool of device memory."""
    return cuda._pool


def get_default_pinned_memory_pool() -> cuda.PinnedMemoryPool:
    """The pool of page-locked host memory."""
    return cuda._pinned_pool


def __getattr__(name: str) -> _Any:
    raise _names.missing("cupy", name)


for _n in _functions.UFUNCS:
    globals()[_n] = ufunc(_n)
for _n in _functions.FUNCTIONS:
    globals()[_n] = _functions.function(_n, getattr(_np, _n))
for _n in _functions.PLAIN:
    globals()[_n] = _functions.plain(_n)
for _n in _functions.FRESH:
    globals()[_n] = _functions.fresh(_n)
del _n

__all__ = [
    "_operators", "_state", "arange", "array", "asarray", "ascontiguousarray", "asnumpy", "copyto", "cuda", "einsum", "empty",
    "empty_like", "full", "full_like", "get_array_module", "linalg", "may_share_memory", "ndarray", "ones", "shares_memory", "ufunc",
    "where", "zeros",
]  # fmt: skip
