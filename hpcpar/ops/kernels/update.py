"""Optimizer passes and the sum of squares. Each operation is rounded on its own: the bits are those of the array text."""

from __future__ import annotations

import numpy as np

from hpcpar.ops.kernels.scalar import kernel

BLOCK = 1024


@kernel()
def adamw(w, g, m, v, lr, beta1, beta2, eps, decay, c1, c2, scale):
    """w, m, v (n,) in place, g (n,) read."""
    number = w.dtype.type
    b1, b2, d1, d2 = number(beta1), number(beta2), number(1 - beta1), number(1 - beta2)
    rate, small, shrink, k1, k2, factor = number(lr), number(eps), number(decay), number(c1), number(c2), number(scale)
    for i in range(w.size):
        x = g[i] * factor
        m[i] = m[i] * b1 + d1 * x
        v[i] = v[i] * b2 + d2 * x * x
        w[i] -= rate * (m[i] / k1 / (np.sqrt(v[i] / k2) + small) + shrink * w[i])


@kernel()
def sgd(w, g, m, lr, momentum, decay, scale):
    """w, m (n,) in place, g (n,) read."""
    number = w.dtype.type
    rate, keep, shrink, factor = number(lr), number(momentum), number(decay), number(scale)
    for i in range(w.size):
        m[i] = m[i] * keep + g[i] * factor
        w[i] -= rate * (m[i] + shrink * w[i])


@kernel()
def square_sum(g):
    """g (n,) -> float64: element i goes to partial sum i mod 1024; then the partial sums are added pairwise."""
    sums = np.zeros(BLOCK)
    for start in range(0, g.size, BLOCK):
        part = g[start : min(start + BLOCK, g.size)]
        for i in range(part.size):
            x = np.float64(part[i])
            sums[i] += x * x
    half = BLOCK // 2
    while half:
        for i in range(half):
            sums[i] += sums[half + i]
        half //= 2
    return sums[0]
