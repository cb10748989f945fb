"""Embedding and softmax cross-entropy over a slice of the vocabulary: what one rank does between the sums over ranks.

    embedding    x = tokens[id] where the id lies in the slice, else 0                                         sum over ranks
    loss         1 top = the largest logit of the row                                                          max over ranks
                 2 target = the logit of the label where it lies in the slice, else 0                          sum over ranks
                 3 total = sum of e^(logit - top)                                                              sum over ranks
                 4 lse = top + log total ; loss = sum over unmasked rows of lse - target
                 4' dlogits = scale (e^(logit - lse) - onehot), the onehot where the label lies in the slice

A slice is [first, first + its size) of the vocabulary. Numbers of a row are kept in float64, as `cross_entropy` keeps its lse.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.ops import embedding
from hpcpar.ops.array import Array, Cost, Part, array_module, contiguous, native

Saved = tuple[Array, Array, Array, int]


def lookup(ids: Array, tokens: Array, first: int, vocabulary: int) -> Array:
    """ids (N,), tokens (V', D), the rows from `first` of `vocabulary` -> x (N, D); rows of ids outside the slice are zero.

    Raises PlanError for an id outside 0 .. vocabulary - 1 (on the CPU).
    """
    xp = array_module(tokens)
    if xp is np:
        _known("token ids", ids, 0, vocabulary)
    local, inside = _local(ids, first, tokens.shape[0])
    return xp.where(inside[:, None], tokens[xp.where(inside, local, 0)], tokens.dtype.type(0))


def lookup_weight(ids: Array, dx: Array, dtokens: Array, first: int, add: bool = False) -> None:
    """ids (N,), dx (N, D) -> dtokens (V', D), the sums of dx over equal ids of the slice, in place, added where `add`."""
    local, inside = _local(ids, first, dtokens.shape[0])
    mine = array_module(dx).flatnonzero(inside)
    embedding.backward_weight((local[mine][None], dx[mine]), dtokens, None, add)


def largest(logits: Array) -> Array:
    """logits (N, V') -> the largest of each row (N,) float64."""
    return logits.max(axis=1).astype("float64")


def targets(logits: Array, labels: Array, first: int, vocabulary: int) -> Array:
    """logits (N, V'), labels (N,) -> (N,) float64, the label's logit where it lies in the slice, else 0.

    Raises PlanError for a label >= vocabulary (on the CPU).
    """
    xp = array_module(logits)
    if xp is np:
        _known("labels", labels, -1, vocabulary)
    local, inside = _local(labels, first, logits.shape[1])
    return xp.where(inside, logits[xp.arange(labels.size), xp.where(inside, local, 0)].astype("float64"), 0.0)


def totals(logits: Array, top: Array) -> Array:
    """logits (N, V'), top (N,) float64 -> (N,) float64, the sum of e^(logit - top)."""
    if native(logits):
        from hpcpar.ops.kernels import softmax as kernel

        out = np.empty(logits.shape[0], np.float64)
        kernel.part_totals(contiguous(logits), top, out)
        return out
    return totals_array(logits, top)


def loss(top: Array, total: Array, target: Array, labels: Array) -> tuple[float, Array]:
    """The numbers of all rows (N,), summed over ranks -> the sum of the losses of unmasked rows and lse (N,) float64."""
    xp = array_module(total)
    lse = xp.log(total) + top
    return float(xp.where(labels >= 0, lse - target, 0.0).sum()), lse


def backward_input(scale: float, saved: Saved) -> Array:
    """saved (logits, lse, labels, first) -> dlogits (N, V') of the slice, 0 in ignored rows; overwrites the logits."""
    logits, lse, labels, first = saved
    if native(logits):
        from hpcpar.ops.kernels import softmax as kernel

        kernel.part_backward(logits, lse, labels, first, float(scale))
        return logits
    return backward_array(scale, saved)


def totals_array(logits: Array, top: Array) -> Array:
    """`totals` in array text: CuPy's path and the kernel's naive twin."""
    xp = array_module(logits)
    return xp.exp(logits - top.astype(logits.dtype)[:, None]).sum(axis=1, dtype=xp.float64)


def backward_array(scale: float, saved: Saved) -> Array:
    """The backward in array text."""
    logits, lse, labels, first = saved
    xp = array_module(logits)
    high = lse.astype(logits.dtype)  # lse in two parts: the first difference is exact where it matters
    logits -= high[:, None]
    logits -= (lse - high).astype(logits.dtype)[:, None]
    xp.exp(logits, out=logits)
    local, inside = _local(labels, first, logits.shape[1])
    logits[xp.arange(labels.size), xp.where(inside, local, 0)] -= inside.astype(logits.dtype)
    logits *= (float(scale) * (labels >= 0)).astype(logits.dtype)[:, None]
    return logits


def _local(ids: Array, first: int, size: int) -> tuple[Array, Array]:
    """Places in the slice, and which lie in it."""
    local = ids - first
    return local, (ids >= 0) & (local >= 0) & (local < size)


def _known(what: str, ids: Any, least: int, vocabulary: int) -> None:
    if ids.size and (int(ids.min()) < least or int(ids.max()) >= vocabulary):
        raise PlanError(
            f"{what} from {ids.min()} to {ids.max()} do not fit vocabulary = {vocabulary}; use vocabulary >= {ids.max() + 1} or other data"
        )


def cost(part: Part, rows: int, vocabulary: int, itemsize: int = 4) -> Cost:
    """The work of one part of the loss on logits (rows, vocabulary of the slice); there are no weights."""
    n = rows * vocabulary
    return {"F": Cost(12 * n, 2 * n * itemsize), "I": Cost(13 * n, 2 * n * itemsize), "W": Cost(0, 0)}[part]
