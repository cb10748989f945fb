"""Every operation as a case: from arrays of one module to named results, forward and backward, inputs from a fixed seed.

A case is f(put, dtype) -> {name: result}; `put` brings a NumPy array to where the case runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.ops import (
    attention,
    cross_entropy,
    dropout,
    embedding,
    gelu,
    grouped,
    layer_norm,
    linear,
    noise,
    permute,
    rms_norm,
    rotary,
    swiglu,
    update,
    vocabulary,
)
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


def attention_blocks(put: Put, dtype: Any) -> Results:
    """Rows of a piece of a sample against columns of another one, and the merge of two pieces; -inf is a row that saw nothing."""
    draw, out = Draw(put, dtype), {}
    for b, t, c, first, h, g, k in ((2, 33, 9, 9, 4, 2, 8), (1, 17, 40, 23, 6, 2, 5), (3, 1, 2, 2, 2, 1, 4), (2, 9, 5, 1, 3, 3, 4)):
        q, kv, dout = draw(b, t, h, k, scale=2), draw(2, b, c, g, k, scale=2), draw(b, t, h, k)
        xp = array_module(q)
        y, dq, dkv = xp.zeros_like(q), xp.zeros_like(q), xp.zeros_like(kv)
        saved = attention.forward(q, kv[0], kv[1], y, first)
        attention.backward_input(dout, saved, dq, dkv[0], dkv[1], first)
        whole, lse, other = draw(b, t + 2, h, k), draw(b, h, t + 2, scale=3), saved[4].copy()
        other[:, :, :1] = -xp.inf
        lse[:, :1, 2 : min(3, t + 1)] = -xp.inf
        attention.merge(whole[:, 1 : t + 1], lse[:, :, 1 : t + 1], y, other)
        found = {"out": y, "lse": saved[4], "dq": dq, "dkv": dkv, "merged": whole, "merged lse": lse}
        out |= {f"{t}x{c} {name}": a for name, a in found.items()}
    return out


def embeddings(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    for size, many in ((50, 3), (2, 7)):
        ids, tokens, positions = draw.integers(0, size, many, 9), draw(size, 6), draw(9, 6)
        x, saved = embedding.forward(ids, tokens, positions)
        dtokens, dpositions, dx = draw(size, 6), draw(9, 6), draw(many * 9, 6)
        for add in (False, True):
            embedding.backward_weight((saved, dx), dtokens, dpositions, add)
            out |= {
                f"{size} {add} x": x,
                f"{size} {add} tokens": dtokens.copy(),
                f"{size} {add} positions": dpositions.copy(),
            }
        out[f"{size} bare"] = embedding.forward(ids, tokens)[0]
    return out


def dropouts(put: Put, dtype: Any) -> Results:
    draw, out = Draw(put, dtype), {}
    x, key = draw(13, 7, lift=9), dropout.key(1, "blocks.0", 3)
    for first in (0, 12345, 2**32 - 40, 2**40):  # also across a change of the index's high half
        for rate in (0.0, 0.1, 0.9):
            out[f"{first} {rate}"] = dropout.forward(x, key, first, rate)
            out[f"{first} {rate} backward"] = dropout.backward_input(x, key, first, rate)
    out["rows"] = dropout.rows(x, key, put(np.arange(13) * 300_000_000), 0.3)
    out["cut rows"] = dropout.rows(x, key, put(np.arange(13) * 300_000_000), 0.3, 5)
    return out


def experts(put: Put, dtype: Any) -> Results:
    """Counts that a device computes as one batched product, and some that it does not."""
    draw, out = Draw(put, dtype), {}
    for counts in ((4, 4, 4, 3), (9, 0, 1), (0, 0), (0, 5), (6,)):
        e, n = len(counts), sum(counts)
        for bias in (True, False):
            x, w, b, dy = draw(n, 6), draw(e, 2, 5, 6), draw(e, 2, 5), draw(n, 10)
            y, saved = grouped.forward(x, counts, w, b if bias else None)
            dx, held = grouped.backward_input(dy, saved, counts, w)
            dw, db = draw(e, 2, 5, 6), draw(e, 2, 5)
            for add in (False, True):
                grouped.backward_weight(held, dw, db if bias else None, add)
                out |= {f"{counts} {bias} {add} {k}": v.copy() for k, v in {"y": y, "dx": dx, "dw": dw, "db": db}.items()}
    for tokens in (np.array([0, 2, 2, 4, 0, 1, 0]), np.zeros(0, np.int64)):
        at = put(tokens)
        rows, weights, dy = draw(len(tokens), 3), draw(len(tokens)), draw(6, 3)
        drows, dweights = permute.combine_backward(dy, rows, weights, at)
        found = {"there": permute.gather(dy, at), "back": permute.gather_backward(rows, at, 6), "y": permute.combine(rows, weights, at, 6)}
        out |= {f"{len(tokens)} {k}": v for k, v in {**found, "drows": drows, "dweights": dweights}.items()}
    return out


def noises(put: Put, dtype: Any) -> Results:
    xp, key, out = array_module(put(np.zeros(1))), dropout.key(1, "moe", 3), {}
    for first in (0, 2**32 - 20):
        out[f"{first} uniform"] = noise.uniform(xp, key, first, (9, 7))
        out[f"{first} normal"] = noise.normal(xp, key, first, (9, 7), dtype)
    x = Draw(put, dtype)(50, scale=3)
    return {**out, "distribution": noise.distribution(x), "density": noise.density(x)}


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


def slices(put: Put, dtype: Any) -> Results:
    """A vocabulary in two slices, of which one has none of the ids."""
    draw, out = Draw(put, dtype), {}
    ids, tokens, dx = draw.integers(0, 5, 12), draw(11, 4), draw(12, 4)
    for first, stop in ((0, 6), (6, 11)):
        dtokens = draw(stop - first, 4)
        out[f"{first} x"] = vocabulary.lookup(ids, tokens[first:stop], first, 11)
        for add in (False, True):
            vocabulary.lookup_weight(ids, dx, dtokens, first, add)
            out[f"{first} {add} tokens"] = dtokens.copy()
        for scale in (1.0, 300.0):
            labels = np.arange(-1, 11, dtype=np.int32)
            logits = draw(12, stop - first, scale=scale)
            top, target = vocabulary.largest(logits), vocabulary.targets(logits, put(labels), first, 11)
            total = vocabulary.totals(logits, top)
            sum_, lse = vocabulary.loss(top, total, target, put(labels))
            dlogits = vocabulary.backward_input(0.37, (logits, lse, put(labels), first))
            found = {"top": top, "target": target, "total": total, "lse": lse, "loss": np.asarray(sum_), "dlogits": dlogits}
            out |= {f"{first} {scale} {k}": v for k, v in found.items()}
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
    attention_blocks: ("attention",),
    embeddings: ("embedding",),
    dropouts: ("dropout",),
    experts: ("grouped", "permute"),
    noises: ("noise",),
    losses: ("cross_entropy",),
    slices: ("vocabulary",),
    updates: ("update",),
}
