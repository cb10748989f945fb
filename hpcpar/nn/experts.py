"""The experts: E MLPs, GELU or SwiGLU, on rows sorted by expert.

1 up (gate and up)    2 GELU or SwiGLU    3 dropout inside    4 down        1 and 4 are grouped products
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.context import Microbatch, Sink
from hpcpar.ops import dropout, gelu, grouped, swiglu

ACTIVATIONS = {"gelu": gelu, "swiglu": swiglu}


def forward(rows: Any, counts: tuple[int, ...], numbers: Any, w: dict[str, Any], at: Microbatch, name: str) -> tuple[Any, tuple]:
    """rows (A, D), counts (E,), numbers (A,) of their places in the batch, for dropout -> y (A, D), saved."""
    act = ACTIVATIONS[at.frame.model.mlp]
    u, s1 = grouped.forward(rows, counts, w["moe.experts.up.weight"], w.get("moe.experts.up.bias"))  # 1
    g, s2 = act.forward(u)  # 2
    g = _dropout(g, numbers, at, name)  # 3
    y, s4 = grouped.forward(g, counts, w["moe.experts.down.weight"], w.get("moe.experts.down.bias"))  # 4
    return y, (counts, numbers, s1, s2, s4)


def backward(dy: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dy (A, D) -> drows (A, D)."""
    counts, numbers, s1, s2, s4 = saved
    act = ACTIVATIONS[at.frame.model.mlp]
    dg, held = grouped.backward_input(dy, s4, counts, w["moe.experts.down.weight"])  # 4
    sink("moe.experts.down", grouped.backward_weight, held)
    dg = _dropout(dg, numbers, at, name)  # 3
    du = act.backward_input(dg, s2)  # 2
    drows, held = grouped.backward_input(du, s1, counts, w["moe.experts.up.weight"])  # 1
    sink("moe.experts.up", grouped.backward_weight, held)
    return drows


def has_dropout(at: Microbatch) -> bool:
    """Whether rows need their numbers."""
    moe = at.frame.model.moe
    return bool(moe and moe.dropout and at.training)


def _dropout(x: Any, numbers: Any, at: Microbatch, name: str) -> Any:
    """Dropout of x (A, F), or its adjoint: the mask comes from (seed, name, step, global token, expert, element)."""
    moe = at.frame.model.moe
    if not moe or not has_dropout(at):
        return x
    return dropout.rows(x, dropout.key(at.frame.seed, f"{name}.experts", at.step), numbers, moe.dropout)
