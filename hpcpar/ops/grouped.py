"""The grouped linear layer: rows sorted by expert, each group of rows times the matrix of its expert.

    rows      | expert 0      | 2      | 3 ...         expert 1 has no row
    y         | x w0' + b0    | x w2'  | x w3'

x (A, I), counts (E,) of numbers of rows, w (E, ..., I) seen as (E, O, I), b (E, ...) seen as (E, O), y (A, O). Nothing is padded on the
CPU: an expert is one product on a slice, and one without rows is no work and has a gradient of exact zeros. A device makes one batched
product of all experts where that pads the rows by a quarter at most, else a product an expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hpcpar.ops import linear, update
from hpcpar.ops.array import Array, Cost, Part, array_module, put

PADDING = 1.25  # rows of the batched product over those that count, at most

Counts = Sequence[int]
Saved = Array
Held = tuple[Array, Array, Counts]


def forward(x: Array, counts: Counts, w: Array, b: Array | None = None) -> tuple[Array, Saved]:
    """x (A, I) -> y (A, O), saved x. Raises ValueError where the counts are not those of x or w."""
    w = _matrices(w)
    _fit(x, counts, w)
    xp = array_module(x)
    if _batched(x, counts):
        y = _gathered(xp.matmul(_spread(x, counts), w.swapaxes(1, 2)), counts)
        if b is not None:
            y += b.reshape(w.shape[:2])[_experts(xp, counts)]
        return y, x
    y = xp.empty((len(x), w.shape[1]), x.dtype)
    for e, at in _slices(counts):
        xp.matmul(x[at], w[e].T, out=y[at])
        if b is not None:
            linear.add_bias(y[at], b[e].reshape(-1))
    return y, x


def backward_input(dy: Array, saved: Saved, counts: Counts, w: Array) -> tuple[Array, Held]:
    """dy (A, O) -> dx (A, I) = dy w, held (x, dy, counts)."""
    w = _matrices(w)
    _fit(dy, counts, w)
    xp = array_module(dy)
    if _batched(dy, counts):
        return _gathered(xp.matmul(_spread(dy, counts), w), counts), (saved, dy, counts)
    dx = xp.empty((len(dy), w.shape[2]), dy.dtype)
    for e, at in _slices(counts):
        xp.matmul(dy[at], w[e], out=dx[at])
    return dx, (saved, dy, counts)


def backward_weight(held: Held, dw: Array, db: Array | None = None, add: bool = False) -> None:
    """dw (E, ..., I) = dy' x of the rows of each expert, db (E, ...) their column sums; in place, added where `add`."""
    x, dy, counts = held
    xp, dw = array_module(dy), _matrices(dw)
    if _batched(dy, counts):
        put(dw, xp.matmul(_spread(dy, counts).swapaxes(1, 2), _spread(x, counts)), add)
        if db is not None:
            put(db, _spread(dy, counts).sum(axis=1).reshape(db.shape), add)
        return
    if not add:
        for e in (e for e, n in enumerate(counts) if not n):
            dw[e] = 0
            if db is not None:
                db[e] = 0
    for e, at in _slices(counts):
        if add:
            update.add_(dw[e], xp.matmul(dy[at].T, x[at]))
        else:
            xp.matmul(dy[at].T, x[at], out=dw[e])
        if db is not None:
            put(db[e].reshape(-1), linear.column_sum(dy[at]), add)


def _matrices(w: Array) -> Array:
    return w.reshape(w.shape[0], -1, w.shape[-1])


def _fit(x: Array, counts: Counts, w: Array) -> None:
    if len(counts) != len(w) or sum(counts) != len(x):
        raise ValueError(f"counts {list(counts)}, {sum(counts)} in all, do not fit {len(x)} rows and {len(w)} experts")


def _slices(counts: Counts) -> Iterator[tuple[int, slice]]:
    """(expert, its rows) of every expert that has some."""
    at = 0
    for e, n in enumerate(counts):
        if n:
            yield e, slice(at, at + n)
        at += n


def _batched(x: Array, counts: Counts) -> bool:
    return array_module(x) is not np and 0 < len(counts) * max(counts) <= PADDING * sum(counts)


def _experts(xp, counts: Counts) -> Array:
    """(A,): the expert of each row."""
    return xp.asarray(np.repeat(np.arange(len(counts)), counts))


def _places(xp, counts: Counts) -> Array:
    """(A,): where each row stands among E x C, with C rows an expert."""
    most, n = max(counts), np.asarray(counts)
    first = np.cumsum(n) - n
    return xp.asarray(np.arange(n.sum()) + np.repeat(np.arange(len(n)) * most - first, n))


def _spread(x: Array, counts: Counts) -> Array:
    """x (A, D) -> (E, C, D), rows of zeros behind those of each expert."""
    xp, most = array_module(x), max(counts)
    out = xp.zeros((len(counts) * most, x.shape[1]), x.dtype)
    out[_places(xp, counts)] = x
    return out.reshape(len(counts), most, -1)


def _gathered(y: Array, counts: Counts) -> Array:
    """(E, C, D) -> (A, D), the rows that count."""
    return y.reshape(-1, y.shape[2])[_places(array_module(y), counts)]


def cost(part: Part, rows: int, into: int, out: int, experts: int, bias: bool = True, itemsize: int = 4) -> Cost:
    """The work of one part for x (rows, into) -> y (rows, out), with the matrices of all experts read or written."""
    moved = rows * into + experts * out * into + rows * out + bias * experts * out * (part != "I")
    return Cost(2 * rows * into * out + bias * rows * out * (part != "I"), moved * itemsize)
