"""Every operation as a case: from arrays of one module to named results, forward and backward, inputs from a fixed seed.

A case is f(put, dtype) -> {name: result}; `put` brings a NumPy array to where the case runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.ops import attention, cross_entropy, dropout, embedding, gelu, layer_norm, linear, rms_norm, rotary, swiglu, update
from hpcpar.ops.array import array_module

Put = Callable[[np.ndarray], Any]
Results = dict[str, Any]


class Draw:
    """Random arrays of a dtype, the same for every module."""

    def __init__(self, put: Put, dtype: Any, seed: int = 5) -> None:
        self.put, self.dtype, self.rng = put, dtype, np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0, lift: float = 0.0) -> Any:
        return self.put((lift + scale * self.rng.standard_normal(shape)).astype(self.dtype))

    def integers(self, low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
        return self.put(self.rng.integers(low, high, shape).astype(dtype))


def linears(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    for n, into, to in ((7, 5, 3), (1, 1, 1), (33, 64, 65)):
        x, w, b, dy = draw(n, into), draw(to, into), draw(to), draw(n, to)
        for bias in (True, False):
            y, saved = linear.forward(x, w, b if bias else None)
            dx, held = linear.backward_input(dy, saved, w)
            dw, db = draw(to, into), draw(to)
            for add in (False, True):
                linear.backward_weight(held, dw, db if bias else None, add)
                out |= {f"{n} {bias} {add} {k}": v.copy() for k, v in {"y": y, "dx": dx, "dw": dw, "db": db}.items()}
    return out


def norms(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    for n, d in ((7, 5), (1, 64), (65, 33)):
        x, gain, bias, dy = draw(n, d, scale=3, lift=2), draw(d, lift=1), draw(d), draw(n, d)
        dgain, dbias = draw(d), draw(d)
        y, saved = layer_norm.forward(x, gain, bias)
        dx, held = layer_norm.backward_input(dy.copy(), saved, gain)
        layer_norm.backward_weight(held, dgain, dbias, True)
        out |= {f"layer {n} y": y, f"layer {n} dx": dx, f"layer {n} dgain": dgain, f"layer {n} dbias": dbias}
        dgain = draw(d)
        y, kept = rms_norm.forward(x, gain)
        dx, only = rms_norm.backward_input(dy.copy(), kept, gain)
        rms_norm.backward_weight(only, dgain, False)
        out |= {f"rms {n} y": y, f"rms {n} dx": dx, f"rms {n} dgain": dgain}
    return out


def activations(put: Put, dtype: Any) -> Results:
    draw = Draw(put, dtype)
    x, dy, gu, dz = draw(9, 22, scale=4), draw(9, 22), draw(9, 22, scale=4), draw(9, 11)
    x[0, 0], x[0, 1], gu[0, 0], gu[0, 1] = 200.0, -200.0, 200.0, -200.0
    y, saved = gelu.forward(x)
    dx = gelu.backward_input(dy.copy(), saved)
    biased, _ = gelu.forward(x.copy(), draw(22))
    z, kept = swiglu.forward(gu)
    return {"gelu y": y, "gelu dx": dx, "gelu bias": biased, "swiglu y": z, "swiglu dgu": swiglu.backward_input(dz, kept)}


def rotaries(put: Put, dtype: Any) -> Results:
    draw = Draw(put, dtype)
    fused = draw(2, 5, 7, 8)
    table = rotary.tables(put(np.arange(3, 8)), 8, 10000.0, dtype)
    rotary.apply(fused[:, :, :3], table)
    whole = fused.copy()
    rotary.apply_inverse(fused[:, :, :3], table)
    return {"cos": table[0], "sin": table[1], "turned": whole, "back": fused}


def attentions(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    for b, t, h, g, k in ((2, 33, 4, 4, 8), (1, 17, 6, 2, 5), (3, 1, 2, 1, 4), (2, 40, 3, 1, 16)):
        qkv, dout = draw(b, t, h + 2 * g, k, scale=2), draw(b, t, h, k)
        xp = array_module(qkv)
        y, dqkv = xp.zeros_like(dout), xp.zeros_like(qkv)
        cut = (slice(0, h), slice(h, h + g), slice(h + g, None))
        saved = attention.forward(*(qkv[:, :, c] for c in cut), y)
        attention.backward_input(dout, saved, *(dqkv[:, :, c] for c in cut))
        out |= {f"{t} {h}/{g} out": y, f"{t} {h}/{g} lse": saved[4], f"{t} {h}/{g} dqkv": dqkv}
    return out


def embeddings(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    for vocabulary, many in ((50, 3), (2, 7)):
        ids, tokens, positions = draw.integers(0, vocabulary, many, 9), draw(vocabulary, 6), draw(9, 6)
        x, saved = embedding.forward(ids, tokens, positions)
        dtokens, dpositions, dx = draw(vocabulary, 6), draw(9, 6), draw(many * 9, 6)
        for add in (False, True):
            embedding.backward_weight((saved, dx), dtokens, dpositions, add)
            out |= {
                f"{vocabulary} {add} x": x,
                f"{vocabulary} {add} tokens": dtokens.copy(),
                f"{vocabulary} {add} positions": dpositions.copy(),
            }
        out[f"{vocabulary} bare"] = embedding.forward(ids, tokens)[0]
    return out


def dropouts(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    x, key = draw(13, 7, lift=9), dropout.key(1, "blocks.0", 3)
    for first in (0, 12345, 2**32 - 40, 2**40):  # also across a change of the index's high half
        for rate in (0.0, 0.1, 0.9):
            out[f"{first} {rate}"] = dropout.forward(x, key, first, rate)
            out[f"{first} {rate} backward"] = dropout.backward_input(x, key, first, rate)
    return out


def losses(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    for n, v, scale in ((9, 11, 3.0), (1, 257, 1.0), (5, 4, 300.0)):
        for ignored in ("none", "some", "all"):
            logits, labels = draw(n, v, scale=scale), np.arange(n, dtype=np.int32) % v
            labels[:: {"none": n + 1, "some": 2, "all": 1}[ignored]] = -1
            if ignored == "none":
                labels[0] = 0
            total, saved = cross_entropy.forward(logits, put(labels))
            out |= {f"{n} {ignored} loss": np.asarray(total), f"{n} {ignored} dlogits": cross_entropy.backward_input(0.37, saved)}
    return out


def updates(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    for n in (1, 1025, 5000):
        w, g, m, v = draw(n), draw(n), draw(n, scale=0.1), abs(draw(n, scale=0.1))
        before = g.copy()
        for step in (1, 2):
            update.adamw(w, g, m, v, 0.01, 0.9, 0.95, 1e-8, 0.1, 1 - 0.9**step, 1 - 0.95**step, 0.5)
        out |= {f"adamw {n} w": w.copy(), f"adamw {n} m": m.copy(), f"adamw {n} v": v, f"adamw {n} g - g": g - before}
        update.sgd(w, g, m, 0.1, 0.9, 0.01, 0.5)
        update.add_(g, w)
        out |= {f"sgd {n} w": w, f"sgd {n} m": m, f"add {n}": g, f"squares {n}": np.asarray(update.square_sum(g))}
    return out


# case: the operations that it covers
CASES: dict[Callable[[Put, Any], Results], tuple[str, ...]] = {
    linears: ("linear",),
    norms: ("layer_norm", "rms_norm"),
    activations: ("gelu", "swiglu"),
    rotaries: ("rotary",),
    attentions: ("attention",),
    embeddings: ("embedding",),
    dropouts: ("dropout",),
    losses: ("cross_entropy",),
    updates: ("update",),
}
