"""A transformer block, before-norm: x + attention(norm(x)), then x + MLP(norm(x)).

    x --+-- 1 norm1 -- 2 qkv -- 3 rotary -- 4 attention -- 5 out -- 6 dropout --+-- x
        |                                                                       |
        +-----------------------------------------------------------------------+
    x --+-- 7 norm2 -- 8 up -- 9 GELU or SwiGLU ------- 10 down -- 11 dropout --+-- y
        |                                                                       |
        +-----------------------------------------------------------------------+

The backward mirrors these steps in reverse. Boundaries `enter` stand before 2 and 8, `leave` after 5 and 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcpar.nn.context import Microbatch, Sink
from hpcpar.ops import attention, gelu, layer_norm, linear, rms_norm, rotary, swiglu
from hpcpar.ops.array import array_module
from hpcpar.ops.update import add_

NORMS = {"layer": layer_norm, "rms": rms_norm}
ACTIVATIONS = {"gelu": gelu, "swiglu": swiglu}


def forward(x: Any, w: dict[str, Any], at: Microbatch, name: str) -> tuple[Any, tuple]:
    """x (B*T, D) -> y (B*T, D), saved."""
    frame = at.frame
    act = ACTIVATIONS[frame.model.mlp]
    h, s1 = norm_forward(x, w, "norm1", at)  # 1
    qkv, s2 = linear.forward(frame.enter.forward(h), w["qkv.weight"], w.get("qkv.bias"))  # 2
    q, k, v = _heads(qkv, at)
    if frame.tables:  # 3
        rotary.apply(q, frame.tables)
        rotary.apply(k, frame.tables)
    o = array_module(x).empty(q.shape, x.dtype)
    *_, lse = attention.forward(q, k, v, o)  # 4
    y, _ = linear.forward(o.reshape(len(x), -1), w["out.weight"], None)  # 5
    y = _bias(frame.leave.forward(y), w, "out")
    y = at.dropout(y, f"{name}.attention")  # 6
    y = add_(y, x)
    h, s7 = norm_forward(y, w, "norm2", at)  # 7
    u, s8 = linear.forward(frame.enter.forward(h), w["up.weight"], w.get("up.bias"))  # 8
    g, s9 = act.forward(u)  # 9
    z, s10 = linear.forward(g, w["down.weight"], None)  # 10
    z = _bias(frame.leave.forward(z), w, "down")
    z = at.dropout(z, f"{name}.mlp")  # 11
    z = add_(z, y)
    return z, (s1, s2, qkv, o, lse, s7, s8, s9, s10)  # whole arrays, each memory once: offload moves them, so no views of another


def backward(dz: Any, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dz (B*T, D) -> dx (B*T, D); what the weights need goes to the sink."""
    s1, s2, qkv, o, lse, s7, s8, s9, s10 = saved
    frame, xp = at.frame, array_module(dz)
    act = ACTIVATIONS[frame.model.mlp]
    d = at.dropout(dz, f"{name}.mlp", backward=True)  # 11
    dg, held = linear.backward_input(frame.leave.backward(d), s10, w["down.weight"])  # 10
    sink("down", linear.backward_weight, held)
    du = act.backward_input(dg, s9)  # 9
    dh, held = linear.backward_input(du, s8, w["up.weight"])  # 8
    sink("up", linear.backward_weight, held)
    dy = norm_backward(frame.enter.backward(dh), s7, w, "norm2", sink, at)  # 7
    dy = add_(dy, dz)
    d = at.dropout(dy, f"{name}.attention", backward=True)  # 6
    do, held = linear.backward_input(frame.leave.backward(d), o.reshape(len(dz), -1), w["out.weight"])  # 5
    sink("out", linear.backward_weight, held)
    dqkv = xp.empty((len(dz), w["qkv.weight"].shape[0]), dz.dtype)
    dq, dk, dv = _heads(dqkv, at)
    attention.backward_input(do.reshape(dq.shape), (*_heads(qkv, at), o, lse), dq, dk, dv)  # 4
    if frame.tables:  # 3
        rotary.apply_inverse(dq, frame.tables)
        rotary.apply_inverse(dk, frame.tables)
    dh, held = linear.backward_input(dqkv, s2, w["qkv.weight"])  # 2
    sink("qkv", _qkv_weight(dq.shape[2], dk.shape[2], at), held)
    dx = norm_backward(frame.enter.backward(dh), s1, w, "norm1", sink, at)  # 1
    return add_(dx, dy)


def _heads(qkv: Any, at: Microbatch) -> tuple[Any, Any, Any]:
    """Views q (B, T, H, K), k and v (B, T, G, K) of one fused array (B*T, (H + 2G) K)."""
    m = at.frame.model
    cube = qkv.reshape(at.samples, at.positions, -1, m.head_width)
    g = (cube.shape[2] * m.groups) // (m.heads + 2 * m.groups)
    h = cube.shape[2] - 2 * g
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
        return layer_norm.forward(x, w[f"{part}.gain"], w.get(f"{part}.bias"))
    return rms_norm.forward(x, w[f"{part}.gain"])


def norm_backward(dh: Any, saved: Any, w: dict[str, Any], part: str, sink: Sink, at: Microbatch) -> Any:
    norm = NORMS[at.frame.model.norm]
    dx, held = norm.backward_input(dh, saved, w[f"{part}.gain"])
    sink(part, layer_norm.backward_weight if norm is layer_norm else _gain_weight, held)
    return dx


def _gain_weight(held: Any, dgain: Any, dbias: None, add: bool) -> None:
    """The W of a norm that has no bias."""
    rms_norm.backward_weight(held, dgain, add)
