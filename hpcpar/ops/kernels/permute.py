"""Rows added up by token, in ascending order of the rows, and their gradients."""

from __future__ import annotations

from hpcpar.ops.kernels.scalar import kernel, summing


@summing()
def _dot(a, b):
    total = a.dtype.type(0)
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@kernel()
def add_rows(rows, tokens, y):
    """y[tokens[a]] += rows[a]; rows (A, D), y (N, D)."""
    for a in range(tokens.size):
        row, to = rows[a], y[tokens[a]]
        for i in range(row.size):
            to[i] += row[i]


@kernel()
def combine(rows, weights, tokens, y):
    """y[tokens[a]] += weights[a] rows[a]."""
    for a in range(tokens.size):
        row, to, w = rows[a], y[tokens[a]], weights[a]
        for i in range(row.size):
            to[i] += w * row[i]


@kernel()
def combine_backward(dy, rows, weights, tokens, drows, dweights):
    """drows[a] = weights[a] dy[tokens[a]], dweights[a] = rows[a] . dy[tokens[a]]."""
    for a in range(tokens.size):
        d, to, w = dy[tokens[a]], drows[a], weights[a]
        dweights[a] = _dot(rows[a], d)
        for i in range(to.size):
            to[i] = w * d[i]
