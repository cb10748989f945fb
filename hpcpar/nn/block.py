"""A transformer block, before-norm: x + attention(norm(x)), then x + MLP(norm(x)).

    x --+-- 1 norm1 -- 2 qkv -- 3 rotary -- 4 attention -- 5 out -- 6 dropout --+-- x
        |                                                                       |
        +-----------------------------------------------------------------------+
    x --+-- 7 norm2 -- 8 up -- 9 GELU or SwiGLU ------- 10 down -- 11 dropout --+-- y
        |                                                                       |
        +-----------------------------------------------------------------------+

The backward mirrors these steps in reverse. Boundaries `enter` stand before 2 and 8, `leave` after 5 and 10. Between them a rank has all
B*T rows and its heads or inner width; outside it has all of D and, under sequence parallelism, its rows. Where a sample is cut, T is of
the positions here, and 4 is an attention over ranks. A mixture of experts (`nn.moe`) stands in the place of 8 to 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcpar.nn import entered, moe
from hpcpar.nn.context import Microbatch, Sink
from hpcpar.nn.router import Routing
from hpcpar.ops import gelu, layer_norm, linear, rms_norm, rotary, swiglu
from hpcpar.ops.array import array_module
from hpcpar.ops.update import add_

NORMS = {"layer": layer_norm, "rms": rms_norm}
ACTIVATIONS = {"gelu": gelu, "swiglu": swiglu}


def forward(x: Any, w: dict[str, Any], at: Microbatch, name: str, routing: Routing | None = None) -> tuple[Any, tuple]:
    """x (B*T, D) -> y (B*T, D), saved; of the rows that this rank sees. Experts that are handed a `routing` are not routed to again."""
    y, first = _attention_forward(x, w, at, name)
    z, second = experts_forward(y, w, at, name, routing) if moe.inside(w) else mlp_forward(y, w, at, name)
    return z, (*first, *second)


def _attention_forward(x: Any, w: dict[str, Any], at: Microbatch, name: str) -> tuple[Any, tuple]:
    frame = at.frame
    h, s1 = norm_forward(x, w, "norm1", at)  # 1
    qkv, s2 = entered.forward(h, w["qkv.weight"], w.get("qkv.bias"), at)  # 2
    q, k, v = _heads(qkv, w, at)
    if frame.tables:  # 3
        rotary.apply(q, frame.tables)
        rotary.apply(k, frame.tables)
    o = array_module(x).empty(q.shape, x.dtype)
    s4 = frame.attention.forward(q, k, v, o)  # 4
    inputs, s4 = (qkv, s4[4:]) if s4[0] is q else (None, s4)  # of views of one array that array: offload moves whole ones, each once
    y, _ = linear.forward(o.reshape(len(qkv), -1), w["out.weight"], None)  # 5
    y = _bias(frame.leave.forward(y, at), w, "out")
    y = at.dropout(y, f"{name}.attention")  # 6
    y = add_(y, x)
    return y, (s1, s2, inputs, s4, o)


def mlp_forward(y: Any, w: dict[str, Any], at: Microbatch, name: str) -> tuple[Any, tuple]:
    """Steps 7 to 11: y (B*T, D) -> z (B*T, D), saved."""
    frame = at.frame
    act = ACTIVATIONS[frame.model.mlp]
    h, s7 = norm_forward(y, w, "norm2", at)  # 7
    u, s8 = entered.forward(h, w["up.weight"], w.get("up.bias"), at)  # 8
    g, s9 = act.forward(u)  # 9
    z, s10 = linear.forward(g, w["down.weight"], None)  # 10
    z = _bias(frame.leave.forward(z, at), w, "down")
    z = at.dropout(z, f"{name}.mlp")  # 11
    z = add_(z, y)
    return z, (s7, s8, s9, s10)


def experts_forward(y: Any, w: dict[str, Any], at: Microbatch, name: str, routing: Routing | None = None) -> tuple[Any, tuple]:
    """Steps 7 to 11 with a mixture of experts."""
    h, s7 = norm_forward(y, w, "norm2", at)  # 7
    z, s8 = moe.forward(h, w, at, name, routing)  # 8, 9, 10
    z = at.dropout(z, f"{name}.mlp")  # 11
    return add_(z, y), (s7, s8)


def routing_of(saved: tuple) -> tuple[Routing, ...]:
    """What recompute keeps of a forward besides its input: the routing of a mixture of experts, nothing of an MLP."""
    return (moe.routing_of(saved[-1]),) if len(saved) == 7 else ()


def backward(dz: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dz (B*T, D) -> dx (B*T, D); what the weights need goes to the sink."""
    half = experts_backward if moe.inside(w) else mlp_backward
    return _attention_backward(half(dz, saved[5:], w, sink, at, name), saved[:5], w, sink, at, name)


def experts_backward(dz: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dz (B*T, D) -> dy (B*T, D)."""
    s7, s8 = saved
    d = at.dropout(dz, f"{name}.mlp", backward=True)  # 11
    dh = moe.backward(d, s8, w, sink, at, name)  # 10, 9, 8
    return add_(norm_backward(dh, s7, w, "norm2", sink, at), dz)  # 7


def mlp_backward(dz: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dz (B*T, D) -> dy (B*T, D)."""
    s7, s8, s9, s10 = saved
    frame = at.frame
    act = ACTIVATIONS[frame.model.mlp]
    d = at.dropout(dz, f"{name}.mlp", backward=True)  # 11
    dg, held = linear.backward_input(frame.leave.backward(d, at), s10, w["down.weight"])  # 10
    sink("down", linear.backward_weight, held)
    du = act.backward_input(dg, s9)  # 9
    dh = entered.backward(du, s8, w["up.weight"], "up", linear.backward_weight, sink, at)  # 8
    dy = norm_backward(dh, s7, w, "norm2", sink, at)  # 7
    dy = add_(dy, dz)
    return dy


def _attention_backward(dy: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    s1, s2, inputs, s4, o = saved
    frame, xp = at.frame, array_module(dy)
    d = at.dropout(dy, f"{name}.attention", backward=True)  # 6
    d = frame.leave.backward(d, at)
    do, held = linear.backward_input(d, o.reshape(len(d), -1), w["out.weight"])  # 5
    sink("out", linear.backward_weight, held)
    dqkv = xp.empty((len(do), w["qkv.weight"].shape[0]), dy.dtype)
    dq, dk, dv = _heads(dqkv, w, at)
    if inputs is not None:
        s4 = (*_heads(inputs, w, at), o, *s4)
    frame.attention.backward_input(do.reshape(dq.shape), s4, dq, dk, dv)  # 4
    if frame.tables:  # 3
        rotary.apply_inverse(dq, frame.tables)
        rotary.apply_inverse(dk, frame.tables)
    dh = entered.backward(dqkv, s2, w["qkv.weight"], "qkv", _qkv_weight(dq.shape[2], dk.shape[2], at), sink, at)  # 2
    dx = norm_backward(dh, s1, w, "norm1", sink, at)  # 1
    return add_(dx, dy)


def _heads(qkv: Any, w: dict[str, Any], at: Microbatch) -> tuple[Any, Any, Any]:
    """Views q (B, T, H, K), k and v (B, T, G, K) of one fused array (B*T, (H + 2G) K), H and G those that this rank holds."""
    width = at.frame.model.head_width
    cube = qkv.reshape(at.samples, at.positions, -1, width)
    h = w["out.weight"].shape[1] // width
    g = (cube.shape[2] - h) // 2
    return cube[:, :, :h], cube[:, :, h : h + g], cube[:, :, h + g :]


def _qkv_weight(heads: int, groups: int, at: Microbatch) -> Callable[..., None]:
    """The W of step 2. A key bias adds the same to all scores of a row, which softmax does not see: its gradient is zero.

    What is computed for it is rounding, which Adam would amplify into differences between plans. (Rotation undoes the symmetry.)
    """
    if at.frame.tables:
        return linear.backward_weight
    k = at.frame.model.head_width

    def backward_weight(held: Any, dw: Any, db: Any, add: bool) -> None:
        linear.backward_weight(held, dw, db, add)
        if db is not None:
            db[heads * k : (heads + groups) * k] = 0

    return backward_weight


def _bias(y: Any, w: dict[str, Any], part: str) -> Any:
    """Adds the bias of a row-cut linear once, after the sum over its pieces."""
    if f"{part}.bias" in w:
        y += w[f"{part}.bias"]
    return y


def norm_forward(x: Any, w: dict[str, Any], part: str, at: Microbatch) -> tuple[Any, Any]:
    if at.frame.model.norm == "layer":
        return layer_norm.forward(x, w[f"{part}.gain"], w.get(f"{part}.bias"), at.frame.model.epsilon)
    return rms_norm.forward(x, w[f"{part}.gain"], at.frame.model.epsilon)


def norm_backward(dh: Any, saved: Any, w: dict[str, Any], part: str, sink: Sink, at: Microbatch) -> Any:
    norm = NORMS[at.frame.model.norm]
    dx, held = norm.backward_input(dh, saved, w[f"{part}.gain"])
    sink(part, layer_norm.backward_weight if norm is layer_norm else _gain_weight, held)
    return dx


def _gain_weight(held: Any, dgain: Any, dbias: None, add: bool) -> None:
    """The W of a norm that has no bias."""
    rms_norm.backward_weight(held, dgain, add)
