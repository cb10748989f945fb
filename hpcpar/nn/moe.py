"""The mixture of experts that stands where a block's MLP stands.

    h -- enter --+-- 1 route ------------------------------------------+
                 +-- 2 gather -- 3 dispatch -- 4 experts -- 5 back -- 6 combine --+-- leave -- y
                 +-- 7 shared experts, while rows are on their way ---------------+

Dropped tokens get 0: the residual carries them. The backward mirrors these steps in reverse. Dispatch is the identity where all experts
are here; expert parallelism supplies its own. It may have the experts computed in parts: steps 3, 4 and 5 follow each other for each, while
the rows of the next part are on their way. Where ranks cut the inner width, each routes all rows alike and combines partial sums, which
`leave` adds up; gradients of weights are partial until they are summed. The router's backward is for this rank's own rows of h, so that it
enters behind `enter`.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn import experts, router
from hpcpar.nn.context import Microbatch, Sink
from hpcpar.nn.router import Routing
from hpcpar.ops import linear, permute
from hpcpar.ops.array import array_module
from hpcpar.ops.update import add_


def inside(w: dict[str, Any]) -> bool:
    """Whether a block with these weights is a mixture of experts."""
    return "moe.experts.up.weight" in w


def forward(h: Any, w: dict[str, Any], at: Microbatch, name: str, routing: Routing | None = None) -> tuple[Any, tuple]:
    """h (this rank's rows of B*T, D) -> y (the same rows, D), saved; with `routing` nothing is routed again."""
    frame, move = at.frame, at.frame.dispatch
    x = frame.enter.forward(h, at)
    r = routing or router.route(x, w, at, f"{name}.moe")  # 1
    going = move.start(permute.gather(x, r.tokens), r.way)  # 2
    numbers = move.start(_numbers(r, at), r.way) if experts.has_dropout(at) else None
    shared, s7 = _shared_forward(x, w, at)  # 7
    coming, s4 = [], []
    for part, some in enumerate(move.parts(r.way)):
        rows = move.finish(going, r.way, part)  # 3
        named = None if numbers is None else move.finish(numbers, r.way, part)
        y, saved = experts.forward(rows, move.counts(r.way, part), named, experts.of(w, some), at, f"{name}.moe")  # 4
        coming.append(move.start_back(y, r.way, part))
        s4.append(saved)
    out = move.finish_back(coming, r.way)  # 5
    y = permute.combine(out, r.weights, r.tokens, len(x))  # 6
    if shared is not None:
        y = add_(y, shared)
    return frame.leave.forward(y, at), (r, h, out, s4, s7)


def backward(dy: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dy (this rank's rows of B*T, D) -> dh (the same rows, D)."""
    r, h, out, s4, s7 = saved
    frame, move = at.frame, at.frame.dispatch
    dy = frame.leave.backward(dy, at)
    dout, dweights = permute.combine_backward(dy, out, r.weights, r.tokens)  # 6
    summing = frame.inner.start(dweights) if r.z is not None else None  # without a router nobody asks
    going = move.start(dout, r.way)  # 5
    dx = _shared_backward(dy, s7, w, sink, at)  # 7
    coming, held = [], []
    for part, some in enumerate(move.parts(r.way)):
        drows, left = experts.backward(move.finish(going, r.way, part), s4[part], experts.of(w, some), at, f"{name}.moe")  # 4
        coming.append(move.start_back(drows, r.way, part))  # 3
        held.append((some, left))
    experts.hand_over(held, sink)  # while the last rows are on their way
    dh = None if r.z is None else router.backward(frame.inner.finish(summing), r, h, w, sink, at, f"{name}.moe")  # 1
    routed = permute.gather_backward(move.finish_back(coming, r.way), r.tokens, len(dy))  # 2
    dx = frame.enter.backward(routed if dx is None else add_(dx, routed), at)
    return dx if dh is None else add_(dx, dh)


def routing_of(saved: tuple) -> Routing:
    """What recompute keeps of a forward."""
    return saved[0]


def _numbers(r: Routing, at: Microbatch) -> Any:
    """(A,): global token x E + expert."""
    moe, places = at.frame.model.moe, at.places(array_module(r.tokens))
    assert moe is not None
    tokens = r.tokens if places is None else places[r.tokens]
    return (tokens + at.first * at.length) * moe.experts + r.experts


def _shared_forward(x: Any, w: dict[str, Any], at: Microbatch) -> tuple[Any, tuple]:
    """The MLP that every token passes through: x (B*T, D) -> y (B*T, D), or None."""
    if "moe.shared.up.weight" not in w:
        return None, ()
    u, s1 = linear.forward(x, w["moe.shared.up.weight"], w.get("moe.shared.up.bias"))
    g, s2 = experts.ACTIVATIONS[at.frame.model.mlp].forward(u)
    y, s3 = linear.forward(g, w["moe.shared.down.weight"], w.get("moe.shared.down.bias") if at.frame.inner.biased else None)
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
