"""Dropout whose mask is a counter-based hash of (key, global element index): the same for any cut, and nothing is saved.

    h = mix(mix(low ^ k0) + k1)    a 32-bit hash; low and high are the halves of the element's index, k0 and k1 come from key and high
    y = x / (1 - rate) where h >= rate 2^32, else 0

`mix` is the two-multiplication finaliser found by C. Wellons' search for 32-bit bijections of low bias ("Prospecting for hash functions",
2018). Random numbers as pure functions of key and counter: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
"""

from __future__ import annotations

import hashlib
from typing import Any

from hpcpar.ops.array import Array, Cost, Part, array_module, contiguous, native

M32 = 0xFFFFFFFF
C1, C2 = 0x7FEB352D, 0x846CA68B


def key(seed: int, name: str, step: int) -> int:
    """The 64-bit key of one place of the model at one step."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}/{step}".encode(), digest_size=8).digest(), "little")


def forward(x: Array, key: int, first: int, rate: float) -> Array:
    """x (N, D), whose first element has the global index `first`, -> y (N, D); rate in [0, 1)."""
    if rate == 0:
        return x.copy()
    if native(x):
        from hpcpar.ops.kernels import dropout as kernel

        x = contiguous(x)
        y = array_module(x).empty_like(x)
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        for high, a, b in _halves(first, x.size):
            kernel.drop(flat_x[a:b], flat_y[a:b], (first + a) & M32, *_keys(key, high), _threshold(rate), 1 / (1 - rate))
        return y
    return forward_array(x, key, first, rate)


def backward_input(dy: Array, key: int, first: int, rate: float) -> Array:
    """dy (N, D) -> dx (N, D): the mask is diagonal, so the backward is the forward of dy."""
    return forward(dy, key, first, rate)


def forward_array(x: Array, key: int, first: int, rate: float) -> Array:
    """The forward in array text: CuPy's path and the kernel's naive twin."""
    xp = array_module(x)
    keep = hashes(xp, key, first, x.size) >= xp.uint32(_threshold(rate))
    return xp.where(keep.reshape(x.shape), x * (1 / (1 - rate)), x.dtype.type(0))


def hashes(xp: Any, key: int, first: int, size: int) -> Array:
    """h (size,) uint32 of the elements first .. first + size, on the array module xp."""
    h = xp.empty(size, dtype=xp.uint32)
    for high, a, b in _halves(first, size):
        k0, k1 = _keys(key, high)
        low = xp.arange(first + a & M32, (first + a & M32) + b - a, dtype=xp.uint64).astype(xp.uint32)
        h[a:b] = _mix(_mix(low ^ xp.uint32(k0)) + xp.uint32(k1))
    return h


def rows(x: Array, key: int, numbers: Array, rate: float, first: int = 0) -> Array:
    """x (A, F) -> y (A, F), where row a has the mask of the elements numbers[a] 2^32 + first + f: rows that are moved or cut keep theirs.

    numbers (A,) are integers below 2^32. The mask is diagonal, so the backward is the same call on dy.
    """
    if rate == 0:
        return x.copy()
    xp = array_module(x)
    k0, k1 = _row_keys(key, numbers.astype(xp.uint32))
    if native(x):
        from hpcpar.ops.kernels import dropout as kernel

        x = contiguous(x)
        y = xp.empty_like(x)
        kernel.drop_rows(x, y, first, k0, k1, _threshold(rate), 1 / (1 - rate))
        return y
    return rows_array(x, k0, k1, rate, first)


def rows_array(x: Array, k0: Array, k1: Array, rate: float, first: int = 0) -> Array:
    """`rows` in array text."""
    xp = array_module(x)
    low = xp.arange(first, first + x.shape[1], dtype=xp.uint32)
    keep = _mix(_mix(low[None, :] ^ k0[:, None]) + k1[:, None]) >= xp.uint32(_threshold(rate))
    return xp.where(keep, x * (1 / (1 - rate)), x.dtype.type(0))


def _row_keys(key: int, high: Array) -> tuple[Array, Array]:
    """`_keys` of an array of high bits."""
    u32 = array_module(high).uint32
    k0 = _mix(u32(key & M32) ^ _mix(high))
    return k0, _mix(u32(key >> 32 & M32) ^ _mix(k0 + u32(1)))


def _mix(h: Array) -> Array:
    u32 = array_module(h).uint32
    h = (h ^ (h >> u32(16))) * u32(C1)
    h = (h ^ (h >> u32(15))) * u32(C2)
    return h ^ (h >> u32(16))


def _mix_int(h: int) -> int:
    h = (h ^ h >> 16) * C1 & M32
    h = (h ^ h >> 15) * C2 & M32
    return h ^ h >> 16


def _keys(key: int, high: int) -> tuple[int, int]:
    """The two 32-bit keys of the elements whose index has these high bits."""
    k0 = _mix_int((key & M32) ^ _mix_int(high & M32))
    return k0, _mix_int((key >> 32 & M32) ^ _mix_int(k0 + 1 & M32))


def _threshold(rate: float) -> int:
    return min(round(rate * 2**32), M32)


def _halves(first: int, size: int) -> list[tuple[int, int, int]]:
    """Cut first .. first + size where the high half of the index changes: (high, from, to) relative to first."""
    out, a = [], 0
    while a < size:
        high = first + a >> 32
        b = min(size, ((high + 1) << 32) - first)
        out.append((high, a, b))
        a = b
    return out


def cost(part: Part, rows: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part on (rows, width), the 14 integer operations of the hash counted as flops; there are no weights."""
    n = rows * width
    return Cost(0, 0) if part == "W" else Cost(16 * n, 2 * n * itemsize)
