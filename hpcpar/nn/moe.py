"""The mixture of experts that stands where a block's MLP stands.

    h --+-- 1 route ------------------------------------------+
        +-- 2 gather -- 3 dispatch -- 4 experts -- 5 back -- 6 combine --+-- y        dropped tokens get 0: the residual carries them
        +-- 7 shared experts, while rows are on their way ---------------+

The backward mirrors these steps in reverse. Dispatch is the identity where all experts are here; expert parallelism supplies its own.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn import experts, router
from hpcpar.nn.context import Microbatch, Sink
from hpcpar.nn.router import Routing
from hpcpar.ops import linear, permute
from hpcpar.ops.update import add_


def inside(w: dict[str, Any]) -> bool:
    """Whether a block with these weights is a mixture of experts."""
    return "moe.experts.up.weight" in w


def forward(h: Any, w: dict[str, Any], at: Microbatch, name: str, routing: Routing | None = None) -> tuple[Any, tuple]:
    """h (B*T, D) -> y (B*T, D), saved; with `routing` nothing is routed again."""
    frame, move = at.frame, at.frame.dispatch
    r = routing or router.route(h, w, at, f"{name}.moe")  # 1
    x = frame.enter.forward(h, at)
    going = move.start(permute.gather(x, r.tokens), r.way)  # 2
    numbers = move.start(_numbers(r, at), r.way) if experts.has_dropout(at) else None
    shared, s7 = _shared_forward(x, w, at)  # 7
    rows = move.finish(going, r.way)  # 3
    if numbers is not None:
        numbers = move.finish(numbers, r.way)
    y, s4 = experts.forward(rows, move.counts(r.way), numbers, w, at, f"{name}.moe")  # 4
    out = move.finish_back(move.start_back(y, r.way), r.way)  # 5
    y = permute.combine(out, r.weights, r.tokens, len(h))  # 6
    if shared is not None:
        y = add_(y, shared)
    return frame.leave.forward(y, at), (r, h, out, s4, s7)


def backward(dy: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dy (B*T, D) -> dh (B*T, D)."""
    r, h, out, s4, s7 = saved
    frame, move = at.frame, at.frame.dispatch
    dy = frame.leave.backward(dy, at)
    dout, dweights = permute.combine_backward(dy, out, r.weights, r.tokens)  # 6
    going = move.start(dout, r.way)  # 5
    dx = _shared_backward(dy, s7, w, sink, at)  # 7
    drows = experts.backward(move.finish(going, r.way), s4, w, sink, at, f"{name}.moe")  # 4
    back = move.start_back(drows, r.way)  # 3
    dh = router.backward(dweights, r, h, w, sink, at, f"{name}.moe")  # 1
    routed = permute.gather_backward(move.finish_back(back, r.way), r.tokens, len(h))  # 2
    dx = frame.enter.backward(routed if dx is None else add_(dx, routed), at)
    return dx if dh is None else add_(dx, dh)


def routing_of(saved: tuple) -> Routing:
    """What recompute keeps of a forward."""
    return saved[0]


def _numbers(r: Routing, at: Microbatch) -> Any:
    """(A,): global token x E + expert."""
    moe = at.frame.model.moe
    assert moe is not None
    return (r.tokens + at.first * at.positions) * moe.experts + r.experts


def _shared_forward(x: Any, w: dict[str, Any], at: Microbatch) -> tuple[Any, tuple]:
    """The MLP that every token passes through: x (B*T, D) -> y (B*T, D), or None."""
    if "moe.shared.up.weight" not in w:
        return None, ()
    u, s1 = linear.forward(x, w["moe.shared.up.weight"], w.get("moe.shared.up.bias"))
    g, s2 = experts.ACTIVATIONS[at.frame.model.mlp].forward(u)
    y, s3 = linear.forward(g, w["moe.shared.down.weight"], w.get("moe.shared.down.bias"))
    return y, (s1, s2, s3)


def _shared_backward(dy: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch) -> Any:
    """dy (B*T, D) -> dx (B*T, D), or None."""
    if not saved:
        return None
    s1, s2, s3 = saved
    dg, held = linear.backward_input(dy, s3, w["moe.shared.down.weight"])
    sink("moe.shared.down", linear.backward_weight, held)
    du = experts.ACTIVATIONS[at.frame.model.mlp].backward_input(dg, s2)
    dx, held = linear.backward_input(du, s1, w["moe.shared.up.weight"])
    sink("moe.shared.up", linear.backward_weight, held)
    return dx
