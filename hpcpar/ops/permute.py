"""Tokens to experts and back: rows are copied in the order of the experts, and what comes of them is added up, weighted, by token.

    tokens            0 1 2 3              rows sorted by expert, then token      | 0 2 3 | 1 2 |        tokens (A,) = 0 2 3 1 2
    gather            row a = x[tokens[a]]
    combine           y[n] = sum over the rows a of token n of weights[a] rows[a], a ascending; zero where there is none

The sum of a token is in one fixed order, by expert: no atomics, the same bits every time.
"""

from __future__ import annotations

from hpcpar.ops.array import Array, Cost, Part, alike, array_module, contiguous, native


def gather(x: Array, tokens: Array) -> Array:
    """x (N, D), tokens (A,) integers in 0 .. N-1 -> rows (A, D)."""
    return x.take(tokens, axis=0)


def gather_backward(drows: Array, tokens: Array, n: int) -> Array:
    """drows (A, D) -> dx (n, D), the sum over the rows of each token."""
    if native(drows):
        from hpcpar.ops.kernels import permute as kernel

        dx = array_module(drows).zeros((n, drows.shape[1]), drows.dtype)
        kernel.add_rows(contiguous(drows), _tokens(tokens, len(drows), n), dx)
        return dx
    return add_rows_array(drows, tokens, n)


def combine(rows: Array, weights: Array, tokens: Array, n: int) -> Array:
    """rows (A, D), weights (A,) -> y (n, D)."""
    if native(rows):
        from hpcpar.ops.kernels import permute as kernel

        alike(rows[:, 0], weights)
        y = array_module(rows).zeros((n, rows.shape[1]), rows.dtype)
        kernel.combine(contiguous(rows), contiguous(weights), _tokens(tokens, len(rows), n), y)
        return y
    return add_rows_array(rows * weights[:, None], tokens, n)


def combine_backward(dy: Array, rows: Array, weights: Array, tokens: Array) -> tuple[Array, Array]:
    """dy (n, D) -> drows (A, D) = weights dy[tokens], dweights (A,) = the dot products of rows and dy[tokens]."""
    if native(dy):
        from hpcpar.ops.kernels import permute as kernel

        alike(rows[:, 0], weights)
        xp = array_module(dy)
        drows, dweights = xp.empty(rows.shape, dy.dtype), xp.empty(len(rows), dy.dtype)
        kernel.combine_backward(contiguous(dy), contiguous(rows), contiguous(weights), _tokens(tokens, len(rows), len(dy)), drows, dweights)
        return drows, dweights
    there = dy[tokens]
    return there * weights[:, None], (there * rows).sum(axis=1)


def add_rows_array(rows: Array, tokens: Array, n: int) -> Array:
    """The sum by token in array text: the first rows of all tokens, then the second ones, and so on."""
    xp = array_module(rows)
    y = xp.zeros((n, rows.shape[1]), rows.dtype)
    if not len(rows):
        return y
    order = xp.argsort(tokens, kind="stable")
    sorted_tokens, every = tokens[order], xp.arange(len(rows))
    place = every - xp.searchsorted(sorted_tokens, sorted_tokens, side="left")  # of a row among those of its token
    for j in range(int(place.max()) + 1):
        at = xp.flatnonzero(place == j)
        y[sorted_tokens[at]] += rows[order[at]]
    return y


def _tokens(tokens: Array, rows: int, n: int) -> Array:
    if tokens.shape != (rows,) or (rows and (int(tokens.min()) < 0 or int(tokens.max()) >= n)):
        raise ValueError(f"tokens {tokens.shape} do not name {rows} rows of {n} tokens")
    return contiguous(tokens)


def cost(part: Part, rows: int, tokens: int, width: int, itemsize: int = 4) -> Cost:
    """The work of gather and combine together for `rows` rows of `tokens` tokens; there are no weights."""
    n, m = rows * width, tokens * width
    return {"F": Cost(2 * n, (3 * n + 2 * m) * itemsize), "I": Cost(4 * n, (4 * n + 2 * m) * itemsize), "W": Cost(0, 0)}[part]
