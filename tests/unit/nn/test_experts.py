"""The layer of experts by laws: permutation, extremes of the routing, groups, numbers that come from global indices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from layer_of_experts import GATES, OneLayer

from hpcpar.config import Model
from hpcpar.nn import describe, router
from hpcpar.nn.context import Microbatch
from hpcpar.nn.gates import GATES as MODULES
from hpcpar.nn.gates import auxiliary
from hpcpar.ops import gelu, linear

ROUTED = [g for g in GATES if MODULES[g].ROUTER]


def layer(gate, **more):
    return OneLayer({"gate": gate, **GATES[gate], **more})


@pytest.mark.parametrize("gate", ROUTED)
def test_permuting_experts_permutes_the_result(gate):
    """The same function with the experts in another order: y, dh, auxiliary losses are equal, gradients are permuted."""
    capacity = {"capacity": {"policy": "floor", "factor": 0.7}, "group": 2} if gate != "noisy-topk" else {}
    one, two = layer(gate, balance=0.3, z_loss=0.2, **capacity), layer(gate, balance=0.3, z_loss=0.2, **capacity)
    two.at = one.at = Microbatch(one.frame, 4, 4, 2, 3, gate != "noisy-topk", 8)  # noise belongs to an expert's number
    two.frame = one.frame
    turn = np.array([3, 0, 4, 1, 2])
    for name in one.names:
        a, b = one.map.by_name(one.flat)[name], two.map.by_name(two.flat)[name]
        b[...] = a[turn]
    (y, _), (z, _) = one.forward(), two.forward()
    assert np.abs(y - z).max() < 1e-13 and np.abs(y).max() > 0.1
    (dh, by_name), (dh2, by_name2) = one.gradients(), two.gradients()
    assert np.abs(dh - dh2).max() < 1e-13
    for name, g in by_name.items():
        assert np.abs(g[turn] - by_name2[name]).max() <= 1e-13 * max(1, np.abs(g).max()), name
    assert [one.routing().counts[e] for e in turn] == list(two.routing().counts)


@pytest.mark.parametrize("capacity", [None, {"policy": "floor", "factor": 1.0}])
def test_all_tokens_to_one_expert(capacity):
    one = layer("topk", k=1, normalise="none", **({"capacity": capacity} if capacity else {}))
    one.h[:, 0] = 1.0
    w = one.map.by_name(one.flat)["blocks.0.moe.router.weight"]
    w[...], w[3, 0] = 0.0, 50.0
    routing = one.routing()
    y, _ = one.forward()
    if capacity:  # a group is a sample of 4 tokens, 5 experts: int(4 / 5) = 0 places
        assert routing.counts == (0,) * 5 and not y.any()
    else:
        assert routing.counts == (0, 0, 0, 16, 0)
    dh, named = one.gradients()
    for name, g in named.items():
        if ".experts." in name:
            assert not g[[0, 1, 2, 4]].any(), f"{name}: an expert without tokens has a gradient of exact zeros"
            assert g[3].any() == (capacity is None), name
    assert np.isfinite(dh).all()


def test_a_dropped_token_is_left_to_the_residual():
    one = layer("switch", capacity={"policy": "floor", "factor": 0.7}, group=2)
    y, _ = one.forward()
    kept = np.zeros(16, bool)
    kept[one.routing().tokens] = True
    assert 0 < kept.sum() < 16
    assert not y[~kept].any() and y[kept].all(axis=1).all()


def test_one_expert_is_the_dense_mlp():
    one = layer("switch", experts=1)
    w = one.weights
    u, _ = linear.forward(one.h, w["moe.experts.up.weight"][0], w["moe.experts.up.bias"][0])
    want, _ = linear.forward(gelu.forward(u)[0], w["moe.experts.down.weight"][0], w["moe.experts.down.bias"][0])
    assert np.abs(one.forward()[0] - want).max() < 1e-14


def test_k_of_all_experts_is_the_mixture_of_all():
    one = layer("topk", k=5, normalise="none")
    w, total = one.weights, 0
    z = one.h @ w["moe.router.weight"].T
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    for e in range(5):
        u, _ = linear.forward(one.h, w["moe.experts.up.weight"][e], w["moe.experts.up.bias"][e])
        y, _ = linear.forward(gelu.forward(u)[0], w["moe.experts.down.weight"][e], w["moe.experts.down.bias"][e])
        total = total + p[:, e : e + 1] * y
    assert np.abs(one.forward()[0] - total).max() < 1e-13


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("order", ["position", "probability", "random"])
def test_a_group_is_routed_the_same_in_any_microbatch(gate, order):
    """All samples at once, or a group at a time: the same decisions, weights, noise, drops and dropout, to the bit of the gate."""
    fields = {"group": 2, "capacity": {"policy": "floor", "factor": 0.7, "order": order}, "dropout": 0.4}
    fields |= {"jitter": 0.2} if gate in ROUTED else {}
    one = layer(gate, **fields)
    whole, (y, _) = one.routing(), one.forward()
    rows = {(int(n), int(e)): float(v) for n, e, v in zip(whole.tokens, whole.experts, whole.weights, strict=True)}
    h, found = one.h, {}
    for a in (0, 2):
        one.at, one.h = Microbatch(one.frame, 2, 4, 2, 3 + a, batch=8), h[4 * a : 4 * a + 8]
        part = one.routing()
        found |= {(int(n) + 4 * a, int(e)): float(v) for n, e, v in zip(part.tokens, part.experts, part.weights, strict=True)}
        assert np.abs(one.forward()[0] - y[4 * a : 4 * a + 8]).max() < 1e-13
    assert found.keys() == rows.keys() and all(abs(found[k] - rows[k]) < 1e-14 for k in rows)


def test_rows_are_sorted_by_expert_then_token():
    r = layer("topk").routing()
    assert sorted(zip(r.experts, r.tokens, strict=True)) == list(zip(r.experts, r.tokens, strict=True))
    assert r.counts == tuple(np.bincount(r.experts, minlength=5)) and sum(r.counts) == 16 * 3


def test_balanced_is_even_and_hash_depends_on_the_position_alone():
    assert set(layer("balanced", experts=4).routing().counts) == {8}
    order = layer("hash").routing().choice.order
    assert (order == order[:1]).all() and len({tuple(row) for row in order[0].tolist()}) > 1


def test_experts_choose_equally_many():
    one = layer("expert-choice", capacity={"policy": "ceil", "factor": 1.0})  # 2 x 4 / 5, up: 2 of each sample
    r = one.routing()
    assert r.counts == (8,) * 5
    p = r.choice.scores[1, :, 2]
    assert set(np.flatnonzero(r.keep[1, :, 2])) == set(np.argsort(-p)[:2])


def test_the_second_expert_by_chance():
    """2 g2 > U: the share of second choices that stay is the mean of min(1, 2 g2), and all stay without training."""
    one = layer("gshard")
    one.h = np.random.default_rng(5).normal(size=(4000, 6))
    one.at = Microbatch(one.frame, 1000, 4, 2, 0)
    c = one.routing().choice
    p = np.sort(c.scores, axis=-1)[..., -2:]
    share = 2 * p[..., 0] / p.sum(axis=-1)  # below 1, g2 being the smaller half
    left = c.skipped.any(axis=-1)
    assert abs((1 - left).mean() - share.mean()) < 4 * 0.5 / math.sqrt(4000)
    one.at = Microbatch(one.frame, 1000, 4, 2, 0, training=False)
    assert one.routing().choice.skipped is None


def test_groups_of_experts_limit_the_choice():
    one = layer("sigmoid-bias", experts=6, expert_groups=3, limit=1)
    r = one.routing()
    chosen = r.choice.order < 2
    assert (chosen.reshape(4, 4, 3, 2).any(axis=-1).sum(axis=-1) == 1).all()
    biased = r.choice.scores + one.weights["moe.router.bias"]
    best = np.argmax(biased.reshape(4, 4, 3, 2).sum(axis=-1), axis=-1)
    assert np.array_equal(chosen.reshape(4, 4, 3, 2).any(axis=-1).argmax(axis=-1), best)


def test_the_selection_bias_learns_from_counts():
    """E count - sum of counts stands in the place of its gradient: exact, and zero in all."""
    one = layer("sigmoid-bias")
    _, named = one.gradients()
    counts = (one.routing().choice.order < 2).sum(axis=(0, 1))
    assert np.array_equal(named["blocks.0.moe.router.bias"], 5 * counts - 32)


def test_jitter_is_for_the_router_alone_and_in_training():
    """z = (h u) W' with u in 0.7 .. 1.3, its mean 1; experts get h; without training u is 1."""
    one, plain = layer("topk", jitter=0.3), layer("topk")
    one.h = plain.h = np.random.default_rng(1).normal(size=(2000, 6))
    for each in (one, plain):
        each.at = Microbatch(each.frame, 500, 4, 2, 3)
        each.map.by_name(each.flat)["blocks.0.moe.router.weight"][:, 1:] = 0.0
    w = one.weights["moe.router.weight"][:, 0]
    z, clean = (each.routing().z.reshape(-1, 5) for each in (one, plain))
    u = z / clean
    assert np.abs(u - u[:, :1]).max() < 1e-12, "one u for an element of a token, whatever the expert"
    assert np.abs(clean - one.h[:, :1] * w).max() < 1e-14
    assert 0.7 <= u.min() < 0.701 and 1.299 < u.max() <= 1.3 and abs(u.mean() - 1) < 4 * 0.6 / math.sqrt(12 * 2000)
    one.at = Microbatch(one.frame, 500, 4, 2, 3, training=False)
    assert np.array_equal(one.routing().z.reshape(-1, 5), clean)
    one.at = Microbatch(one.frame, 500, 4, 3, 3)
    assert not np.array_equal(one.routing().z.reshape(-1, 5), z), "another step has other noise"
    same, twin = (layer("switch", experts=1, **more) for more in ({"jitter": 0.3}, {}))
    assert np.array_equal(same.forward()[0], twin.forward()[0]), "with one expert, whose weight is 1, only its own input matters"


def test_the_router_computes_in_float32_where_tokens_are_halves():
    """Scores and decisions are those of the same tokens in float32; weights and gradients take the type of the tokens."""
    low, high = layer("topk", z_loss=0.1), layer("topk", z_loss=0.1)
    low.h, low.flat = low.h.astype(np.float16), low.flat.astype(np.float16)
    high.h, high.flat = low.h.astype(np.float32), low.flat.astype(np.float32)
    a, b = low.routing(), high.routing()
    assert a.z.dtype == b.z.dtype == np.float32 and np.array_equal(a.z, b.z) and a.counts == b.counts
    assert a.weights.dtype == np.float16 and np.array_equal(a.weights, b.weights.astype(np.float16))
    dw, held = np.random.default_rng(2).normal(size=len(a.tokens)).astype(np.float16), {}
    for name, each, r in (("low", low, a), ("high", high, b)):
        sink = lambda part, work, what, name=name: held.update({name: what})  # noqa: E731
        held[name, "dh"] = router.backward(dw.astype(each.h.dtype), r, each.h, each.weights, sink, each.at, "blocks.0.moe")
    assert held["low", "dh"].dtype == np.float16 and np.array_equal(held["low", "dh"], held["high", "dh"].astype(np.float16))
    assert held["low"][1].dtype == np.float32 and np.array_equal(held["low"][1], held["high"][1])


def test_even_routing_has_a_balance_loss_of_one():
    scores, order = np.full((2, 10, 5), 0.2), np.tile(np.arange(5), (2, 10, 1))
    order = np.stack([np.stack([np.roll(row, i) for i, row in enumerate(group)]) for group in order])
    f = (order < 2).mean(axis=1, keepdims=True) / 2
    assert np.allclose(auxiliary.switch(scores, f), 1.0)
    assert np.allclose(auxiliary.cv2(np.array([[1.0, 3.0]])), 0.25), "population variance 1 over a squared mean of 4"
    assert np.allclose(auxiliary.z_loss(np.log(np.array([[[1.0, 2.0, 3.0]]]))), math.log(6) ** 2)


def test_arithmetic_counts_active_experts():
    dense = Model(layers=2, width=8, heads=2, context=4, mlp_width=24)
    sparse = OneLayer({"gate": "topk", "k": 2, "experts": 5, "width": 12}, width=8, heads=2, layers=2).model
    assert describe.layers(sparse)[1].flops - describe.layers(dense)[1].flops == 2 * 4 * 5 * 8, (
        "the router, beside two experts of half the width"
    )


def test_smaller_first_values():
    found = {s: describe.parameters(OneLayer({"gate": "switch", "k": 1, "initial": s}).model) for s in (1.0, 0.25)}
    for name, p in found[1.0].items():
        q = found[0.25][name]
        if ".moe." in name and name.endswith("weight"):
            assert q.start == p.start / 2, name
        else:
            assert q.start == p.start
    noisy = describe.parameters(OneLayer({"gate": "noisy-topk"}).model)
    assert noisy["blocks.0.moe.router.weight"].start == noisy["blocks.0.moe.noise.weight"].start == "zeros"


@pytest.mark.parametrize("how", ["none", "before", "after"])
def test_weights_add_up_to_one_before_or_after_the_drop(how):
    """The weights of what is kept: p as it is, over the sum of the chosen, or over the sum of the kept."""
    one = layer("topk", k=2, normalise=how, scale=3.0, capacity={"policy": "floor", "factor": 0.7})
    r = one.routing()
    p, chosen = r.choice.scores.reshape(16, 5), (r.choice.order < 2).reshape(16, 5)
    keep = r.keep.reshape(16, 5)
    assert (keep.sum(1) == 1).any() and (keep.sum(1) == 0).any(), "some tokens keep one expert, some none"
    below = {"none": np.ones(16), "before": (p * chosen).sum(1), "after": (p * keep).sum(1)}[how]
    for n, e, w in zip(r.tokens, r.experts, r.weights, strict=True):
        assert keep[n, e] and abs(w - 3 * p[n, e] / below[n]) < 1e-7, (n, e)
    assert len(r.tokens) == keep.sum()


def test_a_first_choice_keeps_its_weight_when_chance_leaves_the_second_out():
    one = layer("gshard")
    r = one.routing()
    p = r.choice.scores.reshape(16, 5)
    left = r.choice.skipped.reshape(16, 5).any(axis=1)
    assert left.any()
    for n, e, w in zip(r.tokens, r.experts, r.weights, strict=True):
        if left[n]:
            top = np.sort(p[n])[-2:]
            assert e == p[n].argmax() and abs(w - top[1] / top.sum()) < 1e-8
