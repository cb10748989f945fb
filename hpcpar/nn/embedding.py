"""The embedding layer: tokens and, where learned, positions.

1 x = tokens[ids] + positions      2 x = dropout(x)
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.context import Microbatch, Sink
from hpcpar.ops import embedding


def forward(ids: Any, w: dict[str, Any], at: Microbatch, name: str) -> tuple[Any, Any]:
    """ids (B, T) -> x (B*T, D), saved."""
    x, saved = embedding.forward(ids, w["tokens.weight"], w.get("positions.weight"))
    return at.dropout(x, name), saved


def backward(dx: Any, saved: Any, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> None:
    """dx (B*T, D); ids have no gradient."""
    dx = at.dropout(dx, name, backward=True)
    sink("tokens positions", embedding.backward_weight, (saved, dx))
