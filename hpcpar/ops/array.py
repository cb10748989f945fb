"""What every operation needs to know of an array: whose it is, and what work costs.

An operation is written once, for NumPy and CuPy, in the functions that both have. The module comes from the argument, so that a run
without a GPU never imports CuPy. Plain NumPy arrays of float32 and float64 take the compiled kernels of `hpcpar.ops.kernels` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray
Part = Literal["F", "I", "W"]  # forward, backward of the input, backward of the weights; B is I then W


@dataclass(frozen=True)
class Cost:
    """The work of one call: `flops` (a multiply-add is two) and `bytes` read and written in main memory, each array once."""

    flops: int
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


def array_module(x: Array) -> ModuleType:
    """The module whose array `x` is: `cupy` for its arrays (only then is it imported), else `numpy`."""
    if type(x).__module__.partition(".")[0] == "cupy":
        import cupy

        return cupy
    return np


def host_array(x: Array) -> np.ndarray:
    """The values in host memory: the array itself, or a copy of a device array."""
    return x if isinstance(x, np.ndarray) else x.get()


def native(x: Array) -> bool:
    """Whether `x` is a plain NumPy array of float32 or float64, for which there are compiled kernels."""
    return type(x) is np.ndarray and (x.dtype == np.float32 or x.dtype == np.float64)


def alike(*arrays: Array) -> None:
    """Raise ValueError where arrays differ in shape or dtype: a compiled kernel would read past the end of the smaller."""
    first = arrays[0]
    for x in arrays[1:]:
        if x.shape != first.shape or x.dtype != first.dtype:
            raise ValueError(f"arrays {first.shape} {first.dtype} and {x.shape} {x.dtype} must have one shape and dtype")


def vector(x: Array, *vectors: Array | None) -> None:
    """Raise ValueError where a vector is not (D,) of the dtype of x (N, D)."""
    for v in vectors:
        if v is not None and (v.shape != x.shape[-1:] or v.dtype != x.dtype):
            raise ValueError(f"a vector {v.shape} {v.dtype} does not fit the rows of {x.shape} {x.dtype}")


def contiguous(x: np.ndarray) -> np.ndarray:
    """`x` as a C-contiguous array: itself, or a copy. Kernels see one layout, so that bits do not depend on the caller's strides."""
    return np.ascontiguousarray(x)


def span(x: np.ndarray) -> np.ndarray:
    """The memory from the first to the last element of a strided array as one writable one-dim view.

    A kernel that gets it with the strides in elements sees unit-stride memory, which the compiler can vectorise. All strides are >= 0.
    """
    size = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) // x.itemsize if x.size else 0
    return np.lib.stride_tricks.as_strided(x, (size,), (x.itemsize,))


def put(target: Array | None, value: Array, add: bool) -> None:
    """Write a gradient into its array, in place: `target = value`, or `target += value`; None takes nothing."""
    if target is None:
        return
    if add:
        target += value
    else:
        target[...] = value
