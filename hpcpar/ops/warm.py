"""Fill the cache of compiled kernels: one process of a node does it first, so that its other ranks only load them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.ops import (
    attention,
    cross_entropy,
    dropout,
    embedding,
    gelu,
    layer_norm,
    linear,
    permute,
    rms_norm,
    rotary,
    swiglu,
    update,
    vocabulary,
)


def warm(dtype: Any = "float32") -> None:
    """Compile or load every kernel for `dtype` (float32 or float64) by a call on tiny arrays."""

    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape, dtype)

    x, vector = ones(2, 4), ones(4)
    y, saved = linear.forward(x, ones(4, 4), vector)
    linear.backward_weight(linear.backward_input(y, saved, ones(4, 4))[1], ones(4, 4), vector, add=True)
    gelu.forward(x.copy(), vector)
    gelu.backward_input(x.copy(), gelu.forward(x)[1])
    swiglu.backward_input(ones(2, 2), swiglu.forward(x)[1])
    layer_norm.backward_input(x, layer_norm.forward(x, vector, vector)[1], vector)
    rms_norm.backward_input(x, rms_norm.forward(x, vector)[1], vector)
    dropout.forward(x, dropout.key(0, "warm", 0), 0, 0.5)
    places = np.zeros(2, np.int64)
    dropout.rows(x, dropout.key(0, "warm", 0), places, 0.5)
    permute.combine_backward(permute.combine(x, ones(2), places, 2), permute.gather(x, places), ones(2), places)
    permute.gather_backward(x, places, 2)
    labels = np.zeros(2, np.int32)
    cross_entropy.backward_input(1.0, cross_entropy.forward(x.copy(), labels)[1])
    top = vocabulary.largest(x)
    vocabulary.backward_input(1.0, (x.copy(), vocabulary.totals(x, top), labels, 0))
    for kind in (np.int32, np.int64):
        ids = np.zeros((1, 2), kind)
        embedding.forward(ids, ones(3, 4), x)
        embedding.backward_weight((ids, x), ones(3, 4), x.copy())
    q, k, v, dq, dk, dv, out = (ones(1, 2, 1, 4) for _ in range(7))
    rotary.apply_inverse(q, rotary.tables(np.arange(2), 4, dtype=dtype))
    saved = attention.forward(q, k, v, out.copy())
    attention.merge(out.copy(), saved[4].copy(), out, saved[4])
    attention.backward_input(out, saved, dq, dk, dv)
    w, g, m, s = (ones(4) for _ in range(4))
    update.adamw(w, g, m, s, 0.1, 0.9, 0.9, 1e-8, 0.1, 1.0, 1.0, 1.0)
    update.sgd(w, g, m, 0.1, 0.9, 0.1, 1.0)
    update.square_sum(g)
    update.add_(w, g)
