"""Additions along rows and columns: a bias, its gradient, a residual, the rows of an embedding."""

from __future__ import annotations

import numpy as np

from hpcpar.ops.kernels.scalar import kernel

BLOCK = 64


@kernel()
def add(a, b):
    """a (n,) += b (n,)."""
    for i in range(a.size):
        a[i] += b[i]


@kernel()
def add_bias(y, b):
    """y (N, O) += b (O,)."""
    for r in range(y.shape[0]):
        row = y[r]
        for i in range(row.size):
            row[i] += b[i]


@kernel()
def column_sum(y):
    """y (N, O) -> (O,): sums of blocks of 64 rows, four rows at a time, then of the blocks."""
    zero = y.dtype.type(0)
    n, width = y.shape
    total = np.zeros(width, y.dtype)
    part = np.empty(width, y.dtype)
    for start in range(0, n, BLOCK):
        part[:] = zero
        stop = min(start + BLOCK, n)
        fours = start + (stop - start) // 4 * 4
        for r in range(start, fours, 4):
            a, b, c, d = y[r], y[r + 1], y[r + 2], y[r + 3]
            for i in range(width):
                part[i] += (a[i] + b[i]) + (c[i] + d[i])
        for r in range(fours, stop):
            a = y[r]
            for i in range(width):
                part[i] += a[i]
        for i in range(width):
            total[i] += part[i]
    return total


@kernel()
def gather_add(ids, tokens, positions, x):
    """x (N, D) = tokens[ids] + positions[n mod T]; ids (N,), positions (T, D)."""
    t = positions.shape[0]
    for n in range(ids.size):
        row, place, to = tokens[ids[n]], positions[n % t], x[n]
        for i in range(to.size):
            to[i] = row[i] + place[i]


@kernel()
def scatter_add(ids, dx, dtokens):
    """dtokens[ids[n]] += dx[n] for n ascending; ids (N,), dx (N, D), dtokens (V, D)."""
    for n in range(ids.size):
        row, to = dx[n], dtokens[ids[n]]
        for i in range(row.size):
            to[i] += row[i]
