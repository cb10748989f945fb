"""Softmax cross-entropy: loss = sum over rows of lse(logits) - logits[label], lse = log of the sum of e^logits."""

from __future__ import annotations

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.ops.array import Array, Cost, Part, array_module, contiguous, native

Saved = tuple[Array, Array, Array]


def forward(logits: Array, labels: Array) -> tuple[float, Saved]:
    """logits (N, V), labels (N,) int32, -1 = ignored -> the sum of the losses, in float64; saved (logits, lse (N,) float64, labels).

    lse is kept in float64: the backward subtracts it from logits of its own size. Raises PlanError for a label >= V (on the CPU).
    """
    if native(logits):
        from hpcpar.ops.kernels import softmax as kernel

        logits, labels = contiguous(logits), contiguous(labels)
        if labels.shape != logits.shape[:1]:
            raise ValueError(f"labels {labels.shape} do not fit logits {logits.shape}")
        v = logits.shape[1]
        if labels.size and (int(labels.min()) < -1 or int(labels.max()) >= v):
            raise PlanError(f"labels from {labels.min()} to {labels.max()} do not fit vocabulary = {v}; use 0 to {v - 1}, or -1 to ignore")
        lse = np.empty(logits.shape[0], np.float64)
        return kernel.loss_forward(logits, labels, lse), (logits, lse, labels)
    return forward_array(logits, labels)


def backward_input(scale: float, saved: Saved) -> Array:
    """saved -> dlogits (N, V) = scale (softmax - onehot), 0 in ignored rows; overwrites the logits."""
    logits, lse, labels = saved
    if native(logits):
        from hpcpar.ops.kernels import softmax as kernel

        kernel.loss_backward(logits, lse, labels, float(scale))
        return logits
    return backward_array(scale, saved)


def forward_array(logits: Array, labels: Array) -> tuple[float, Saved]:
    """The forward in array text: CuPy's path and the kernel's naive twin."""
    xp = array_module(logits)
    if not logits.shape[0]:
        return 0.0, (logits, xp.empty(0, dtype=xp.float64), labels)
    top = logits.max(axis=1)
    total = xp.exp(logits - top[:, None]).sum(axis=1, dtype=xp.float64)
    lse = xp.log(total) + top
    counted = labels >= 0
    picked = logits[xp.arange(labels.size), xp.where(counted, labels, 0)]
    return float(xp.where(counted, lse - picked, 0.0).sum()), (logits, lse, labels)


def backward_array(scale: float, saved: Saved) -> Array:
    """The backward in array text."""
    logits, lse, labels = saved
    xp = array_module(logits)
    high = lse.astype(logits.dtype)  # lse in two parts: the first difference is exact where it matters
    low = (lse - high).astype(logits.dtype)
    logits -= high[:, None]
    logits -= low[:, None]
    xp.exp(logits, out=logits)
    counted = labels >= 0
    logits[xp.arange(labels.size), xp.where(counted, labels, 0)] -= counted.astype(logits.dtype)
    logits *= (float(scale) * counted).astype(logits.dtype)[:, None]
    return logits


def cost(part: Part, rows: int, vocabulary: int, itemsize: int = 4) -> Cost:
    """The work of one part on logits (rows, vocabulary); there are no weights."""
    n = rows * vocabulary
    return {"F": Cost(12 * n, n * itemsize), "I": Cost(13 * n, 2 * n * itemsize), "W": Cost(0, 0)}[part]
