"""Embedding and loss where each tensor-parallel rank holds a slice of the vocabulary.

    embed    rows of its slice, else 0 -- g: sum over ranks --> x + positions
    loss     logits of its slice -- max; sum of the labels' logits; sum of exponentials --> the loss, the same on all ranks

Three all-reduces of B*T numbers stand in the place of one of (B*T, V): arXiv:1909.08053, section 3. The sums of the labels' logits travel
with the largest ones; the exponentials need the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcpar.comm.world import Group
from hpcpar.layout import cut
from hpcpar.nn.context import Boundary, Microbatch, Vocabulary
from hpcpar.ops import embedding, vocabulary
from hpcpar.ops.array import array_module


class Slice(Vocabulary):
    """This rank's slice of a vocabulary of `size`; `leave` is g."""

    def __init__(self, group: Group, leave: Boundary, size: int):
        self._group, self._leave, self._size = group, leave, size
        self._first = cut(size, group.size, group.index).start

    def embed(self, ids: Any, w: dict[str, Any], at: Microbatch) -> tuple[Any, Any]:
        """ids (B, T) -> tokens[ids] + positions of this rank's rows, saved ids."""
        x = self._leave.forward(vocabulary.lookup(ids.reshape(-1), w["tokens.weight"], self._first, self._size), at)
        if "positions.weight" in w:
            x += w["positions.weight"][_places(x, at)]
        return x, ids

    def embed_backward(self, dx: Any, saved: Any, at: Microbatch) -> tuple[Callable[..., None], Any]:
        """dx of this rank's rows -> the backward_weight of its slice of tokens and of the positions, and what it holds."""
        whole = self._leave.backward(dx, at)

        def backward_weight(held: Any, dtokens: Any, dpositions: Any, add: bool) -> None:
            ids, whole, dx = held
            vocabulary.lookup_weight(ids.reshape(-1), whole, dtokens, self._first, add)
            if dpositions is not None:
                embedding.backward_weight((_places(dx, at)[None], dx), dpositions, None, add)

        return backward_weight, (saved, whole, dx)

    def loss(self, logits: Any, labels: Any) -> tuple[float, Any]:
        """logits (B*T, V' of this rank's slice), labels (B*T,) -> the sum of the losses, the same on all ranks; saved."""
        top, target = vocabulary.largest(logits), vocabulary.targets(logits, labels, self._first, self._size)
        arriving = [self._group.allreduce_start(top, "max", "softmax"), self._group.allreduce_start(target, "sum", "softmax")]
        arriving[0].wait()
        total = self._group.allreduce(vocabulary.totals(logits, top), "sum", "softmax")
        arriving[1].wait()
        loss, lse = vocabulary.loss(top, total, target, labels)
        return loss, (logits, lse, labels, self._first)

    def loss_backward(self, scale: float, saved: Any) -> Any:
        """The gradient of scale x loss by this rank's logits, in their memory."""
        return vocabulary.backward_input(scale, saved)


def _places(x: Any, at: Microbatch) -> Any:
    """The positions of the rows that this rank sees."""
    xp, rows = array_module(x), at.rows
    return xp.arange(rows.start, rows.stop) % at.positions
