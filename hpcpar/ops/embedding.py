"""Token and position embedding: x[b, t] = tokens[ids[b, t]] + positions[t]."""

from __future__ import annotations

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.ops.array import Array, Cost, Part, array_module, contiguous, native, put, vector

Saved = Array
Held = tuple[Array, Array]


def forward(ids: Array, tokens: Array, positions: Array | None = None) -> tuple[Array, Saved]:
    """ids (B, T) integers, tokens (V, D), positions (T, D) or None -> x (B T, D), saved ids.

    Raises PlanError for an id outside 0 .. V-1 (looked for on the CPU only: a device would have to be waited for).
    """
    b, t = ids.shape
    width = tokens.shape[1]
    if array_module(ids) is np:
        _within(ids, tokens.shape[0])
    if positions is not None and native(tokens):
        from hpcpar.ops.kernels import columns

        x = np.empty((b * t, width), tokens.dtype)
        if positions.shape != (t, width) or positions.dtype != tokens.dtype:
            raise ValueError(f"positions {positions.shape} {positions.dtype} do not fit ids {ids.shape} and tokens {tokens.shape}")
        columns.gather_add(contiguous(ids).reshape(-1), contiguous(tokens), contiguous(positions), x)
        return x, ids
    x = tokens[ids.reshape(-1)]
    if positions is not None:
        by_sample = x.reshape(b, t, width)
        by_sample += positions
    return x, ids


def backward_weight(held: Held, dtokens: Array | None, dpositions: Array | None = None, add: bool = False) -> None:
    """held (ids (B, T), dx (B T, D)); dtokens (V, D) = the sum of dx over equal ids, dpositions (T, D) over the batch, in place.

    Each row adds its occurrences in one fixed order (ascending on the CPU, a pairwise tree on a device): no atomics, same bits every time.
    """
    ids, dx = held
    b, t = ids.shape
    if dtokens is not None:
        if not add:
            dtokens[...] = 0
        if native(dx) and dtokens.flags.c_contiguous:
            from hpcpar.ops.kernels import columns

            _within(ids, dtokens.shape[0])
            vector(dx, dtokens[0])
            columns.scatter_add(contiguous(ids).reshape(-1), contiguous(dx), dtokens)
        else:
            scatter_add_array(ids.reshape(-1), dx, dtokens)
    if dpositions is not None:
        put(dpositions, dx.reshape(b, t, -1).sum(axis=0), add)


def scatter_add_array(ids: Array, dx: Array, dtokens: Array) -> None:
    """dtokens[ids] += dx in array text: sorts the rows by id, then adds the rows of each id as a pairwise tree."""
    xp = array_module(dx)
    n = ids.size
    if not n:
        return
    order = xp.argsort(ids, kind="stable")
    ids, dx = ids[order], dx[order]
    every = xp.arange(n)
    first = xp.flatnonzero(xp.concatenate((xp.ones(1, dtype=bool), ids[1:] != ids[:-1])))
    length = xp.concatenate((first[1:], xp.full(1, n, dtype=first.dtype))) - first
    run = xp.searchsorted(first, every, side="right") - 1
    place, end = every - first[run], length[run]  # of a row within the rows of its id
    step, longest = 1, int(length.max())
    while step < longest:
        left = xp.flatnonzero((place % (2 * step) == 0) & (place + step < end))
        dx[left] += dx[left + step]
        step *= 2
    dtokens[ids[first]] += dx[first]


def _within(ids: np.ndarray, vocabulary: int) -> None:
    if not ids.size:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise PlanError(f"token ids from {low} to {high} do not fit vocabulary = {vocabulary}; use vocabulary >= {high + 1} or other data")


def cost(part: Part, rows: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part for `rows` tokens; the backward has weights only."""
    n = rows * width
    return {"F": Cost(n, 3 * n * itemsize), "I": Cost(0, 0), "W": Cost(2 * n, 3 * n * itemsize)}[part]
