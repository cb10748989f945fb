"""The rates of this machine, measured: arithmetic of the best square matrix product, and bytes to and from main memory.

They are what the fraction of the machine's rate in every analysis refers to; BLAS threads are set before, by whoever calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.comm.device import synchronize

SIZES = (512, 1024, 1536, 4096, 8192)  # below, overhead is measured; those that would outlast the measurement are left out
MEMORY_BYTES = 1 << 27  # beyond the last cache of a core's share


def matrix_rate(dtype: Any = "float32", seconds: float = 0.3, xp: Any = np) -> float:
    """The highest rate of a square matrix product of this dtype, flop/s (a multiply-add is two), over about `seconds`.

    The best call counts: the rate that the machine can reach, not what others leave of it.
    """
    rate, end = 0.0, time.perf_counter() + seconds
    for n in SIZES:
        left = end - time.perf_counter()
        if rate and 2 * n**3 / rate > left / 2:
            break
        rate = max(rate, 2 * n**3 / _best_s(_product(n, dtype, xp), left / 3))
    return rate


def memory_rate(seconds: float = 0.3, xp: Any = np) -> float:
    """The highest rate of a copy within main memory, bytes/s, read and written bytes both counted, over about `seconds`."""
    source = xp.ones(MEMORY_BYTES // 8, dtype="float64")
    target = xp.zeros_like(source)

    def copy() -> None:
        xp.copyto(target, source)
        synchronize(target)

    return 2 * source.nbytes / _best_s(copy, seconds)


def _product(n: int, dtype: Any, xp: Any) -> Callable[[], None]:
    a, b = xp.full((n, n), 0.5, dtype=dtype), xp.full((n, n), 0.25, dtype=dtype)
    c = xp.empty_like(a)

    def product() -> None:
        xp.matmul(a, b, out=c)
        synchronize(c)

    return product


def _best_s(f: Callable[[], None], seconds: float) -> float:
    """The shortest time of one call among those begun within `seconds`, at least one, s; the first warms the caches."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def matrix_rate_of(device: str, dtype: str) -> float:
    """The matrix rate of run.device = "cpu" or "cuda", flop/s."""
    if device == "cpu":
        return matrix_rate(dtype)
    import cupy

    return matrix_rate(dtype, xp=cupy)
