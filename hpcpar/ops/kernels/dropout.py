"""Dropout by a 32-bit hash of the element's index."""

from __future__ import annotations

import numpy as np

from hpcpar.ops.kernels.scalar import kernel

U = np.uint32
C1, C2, S15, S16 = U(0x7FEB352D), U(0x846CA68B), U(15), U(16)


@kernel()
def _mix(h):
    h = U((h ^ (h >> S16)) * C1)
    h = U((h ^ (h >> S15)) * C2)
    return U(h ^ (h >> S16))


@kernel()
def drop(x, y, low, k0, k1, threshold, scale):
    """y (n,) = scale x where the hash of low + i is at least the threshold, else 0."""
    zero, factor = x.dtype.type(0), x.dtype.type(scale)
    a, k, m, limit = U(low), U(k0), U(k1), U(threshold)
    for i in range(x.size):
        h = _mix(U(_mix(U(U(a + U(i)) ^ k)) + m))
        y[i] = x[i] * factor if h >= limit else zero


@kernel()
def drop_rows(x, y, first, k0, k1, threshold, scale):
    """y (A, F) = scale x where the hash of first + f under the keys of the row is at least the threshold, else 0; k0, k1 (A,)."""
    for r in range(x.shape[0]):
        drop(x[r], y[r], first, k0[r], k1[r], threshold, scale)
