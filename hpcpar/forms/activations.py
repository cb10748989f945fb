"""Bytes of what a layer saves for its backward, and of what lives only while it runs: arithmetic on shapes.

N = B T rows, D width, F inner width, Q = (H + 2 G) K columns of query, key and value:

    block    saves    x, norm1, h: N D each or less, qkv: N Q, o: N H K, log-sums: N H, y, norm2, h: N D, u: N F (2 F gated), g: N F
    head     saves    x, norm, h: N D, logits: N V, log-sums in float64: N
    recompute         a block saves x alone, and makes the rest again in its backward

Not counted: what lives inside one operation (a tile of attention's scores, the product that is added to a weight's gradient), vectors of a
layer's width, and the ids of tokens, which are the batch and not an activation.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.config import Model
from hpcpar.nn.describe import Layer


@dataclass(frozen=True)
class Shape:
    """A microbatch of `samples` on one rank, in numbers of `itemsize` bytes; `recompute`: blocks keep their input alone."""

    model: Model
    samples: int
    itemsize: int
    recompute: bool = False

    @property
    def rows(self) -> int:
        """N."""
        return self.samples * self.model.context

    @property
    def border_bytes(self) -> int:
        """What goes from one layer to the next, (N, D), forward or backward."""
        return self.rows * self.model.width * self.itemsize

    @property
    def dropped_bytes(self) -> int:
        """What dropout makes beside its input, (N, D); 0 without dropout."""
        return self.border_bytes if self.model.dropout else 0

    @property
    def token_bytes(self) -> int:
        """ids and labels of the microbatch, int32."""
        return 2 * 4 * self.rows


def saved_bytes(layer: Layer, at: Shape) -> int:
    """What stays from a layer's forward to its backward; its input counts, its output is the next layer's."""
    if layer.kind == "block" and at.recompute:
        return at.border_bytes
    return _whole(layer, at)


def forward_bytes(layer: Layer, at: Shape) -> int:
    """The most that lives beside the saved arrays while the forward runs, without its output."""
    if layer.kind == "block" and at.recompute:
        return _whole(layer, at) - at.border_bytes + at.dropped_bytes
    return 0 if layer.kind == "head" else at.dropped_bytes


def backward_bytes(layer: Layer, at: Shape) -> int:
    """The most that lives beside the saved arrays while the backward runs, without the gradients of its output and its input."""
    if layer.kind == "embedding":
        return at.dropped_bytes
    if layer.kind == "head":
        return at.border_bytes  # of h; that of the logits takes their place
    m = at.model
    inner = m.inner if m.mlp == "gelu" else 3 * m.inner  # GELU's gradient takes the place of its output's
    columns = inner + _fused(m) + m.heads * m.head_width + 2 * m.width  # du, dqkv, do, and dh twice or dh and dx
    again = _whole(layer, at) - at.border_bytes if at.recompute else 0
    return again + at.rows * columns * at.itemsize + at.dropped_bytes


def _fused(m: Model) -> int:
    return (m.heads + 2 * m.groups) * m.head_width


def _whole(layer: Layer, at: Shape) -> int:
    """What the forward of a layer leaves, without recomputation."""
    m = at.model
    norm = 2 if m.norm == "layer" else 1  # mean and 1 / deviation, or 1 / root mean square
    if layer.kind == "embedding":
        return 0
    if layer.kind == "head":
        return at.rows * ((2 * m.width + norm + m.vocabulary) * at.itemsize + 8)
    columns = 4 * m.width + 2 * norm + _fused(m) + m.heads * m.head_width + m.heads
    columns += (2 if m.mlp == "gelu" else 3) * m.inner
    return at.rows * columns * at.itemsize
