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
    bias = w.get("moe.experts.down.bias") if at.frame.inner.biased else None
    y, s4 = grouped.forward(g, counts, w["moe.experts.down.weight"], bias)  # 4
    return y, (counts, numbers, s1, s2, s4)


def backward(dy: Any, saved: tuple, w: dict[str, Any], at: Microbatch, name: str) -> tuple[Any, dict[str, Any]]:
    """dy (A, D) -> drows (A, D), and by parameter what W needs."""
    counts, numbers, s1, s2, s4 = saved
    act = ACTIVATIONS[at.frame.model.mlp]
    dg, down = grouped.backward_input(dy, s4, counts, w["moe.experts.down.weight"])  # 4
    dg = _dropout(dg, numbers, at, name)  # 3
    du = act.backward_input(dg, s2)  # 2
    drows, up = grouped.backward_input(du, s1, counts, w["moe.experts.up.weight"])  # 1
    return drows, {"moe.experts.down": down, "moe.experts.up": up}


def of(w: dict[str, Any], some: slice) -> dict[str, Any]:
    """The weights of some of the experts here: views."""
    return {name: v[some] for name, v in w.items() if name.startswith("moe.experts.")}


def hand_over(held: list[tuple[slice, dict[str, Any]]], sink: Sink) -> None:
    """Give W what `backward` left of every part of the experts here."""
    for part in held[0][1]:
        sink(part, _backward_weight, [(some, left[part]) for some, left in held])


def _backward_weight(held: list[tuple[slice, grouped.Held]], dw: Any, db: Any, add: bool) -> None:
    """The W of steps 1 and 4: the rows of an expert are all in one part, so that its product is one, however many parts there are."""
    for some, of_part in held:
        grouped.backward_weight(of_part, dw[some], None if db is None else db[some], add)


def has_dropout(at: Microbatch) -> bool:
    """Whether rows need their numbers."""
    moe = at.frame.model.moe
    return bool(moe and moe.dropout and at.training)


def _dropout(x: Any, numbers: Any, at: Microbatch, name: str) -> Any:
    """Dropout of x (A, F here), or its adjoint: the mask comes from (seed, name, step, global token, expert, element)."""
    moe, width = at.frame.model.moe, at.frame.model.expert_width
    if not moe or not has_dropout(at):
        return x
    return dropout.rows(x, dropout.key(at.frame.seed, f"{name}.experts", at.step), numbers, moe.dropout, at.frame.inner.first(width))
