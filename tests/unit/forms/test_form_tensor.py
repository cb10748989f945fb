"""The form of tensor parallelism: every element is held, each by the ranks that say so, and the numbers are the papers'."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from hpcpar import config
from hpcpar.config import Model, Moe, Plan, Train
from hpcpar.errors import PlanError
from hpcpar.forms import tensor
from hpcpar.forms.activations import Shape, items, stage_items
from hpcpar.nn.describe import cut_stages, layers, parameters
from hpcpar.nn.parameters import FlatMap, initial

GPT = Model(layers=2, width=24, heads=6, mlp_width=50, vocabulary=259)
LLAMA = Model(layers=2, width=48, heads=12, kv_heads=2, norm="rms", position="rotary", mlp="swiglu", bias=False, tied=False)
GELU_EXPERTS = replace(GPT, moe=Moe(experts=5, gate="noisy-topk", every=2, width=7))
GATED_EXPERTS = replace(LLAMA, mlp_width=13, moe=Moe(experts=3, gate="sigmoid-bias", shared=2))
CASES = [(GPT, t) for t in (1, 2, 3, 4, 5, 6)] + [(LLAMA, t) for t in (1, 2, 4, 6, 8, 10, 12)]
CASES += [(GELU_EXPERTS, t) for t in (1, 3, 6)] + [(GATED_EXPERTS, t) for t in (1, 4, 12)]


def pieces(model, degree, sequence=False):
    """{name: its parameter on each rank}."""
    cut = [[tensor.cut_layer(x, model, degree, r, sequence) for x in layers(model)] for r in range(degree)]
    return {name: [next(p for x in mine for p in x.parameters if p.name == name) for mine in cut] for name in parameters(model)}


@pytest.mark.parametrize("model, degree", CASES)
def test_every_element_is_held_and_counted_once(model, degree):
    for name, ranks in pieces(model, degree).items():
        counted, held = np.zeros(ranks[0].shape, int), np.zeros(ranks[0].shape, int)
        for p in ranks:
            held[p.slices] += 1
            counted[p.slices] += p.counts
            assert p.local_size > 0
            if p.piece:
                same = tuple(r for r, q in enumerate(ranks) if q.piece.box == p.piece.box)
                assert same == p.piece.holders, name
                assert (held[p.slices] > 0).all()
        assert (counted == 1).all() and (held > 0).all(), name


@pytest.mark.parametrize("model, degree", CASES)
def test_query_heads_find_their_keys(model, degree):
    """A rank's heads read the key/value heads that it holds, equally many heads each, in order."""
    many = model.heads // model.groups
    for r in range(degree):
        heads, groups, _ = tensor.heads_of(model, degree, r)
        h, g = heads.stop - heads.start, groups.stop - groups.start
        assert h >= 1 and h % g == 0
        for i in range(h):
            assert (heads.start + i) // many == groups.start + i // (h // g)


def test_what_is_summed_over_tp():
    """With sequence parallelism what sees a rank's own rows; key/value heads that several ranks share, always; nothing else."""
    shared = {n for n, ranks in pieces(LLAMA, 4).items() if ranks[0].summed}
    assert shared == {f"blocks.{i}.attention.{x}.weight" for i, x in product(range(2), ("key", "value"))}
    rows = {n for n, ranks in pieces(GPT, 2, sequence=True).items() if ranks[0].summed}
    assert rows == {n for n in parameters(GPT) if "norm" in n or n == "positions.weight"}
    assert not any(ranks[0].summed for ranks in pieces(GPT, 2).values())
    assert not any(ranks[0].summed for ranks in pieces(GELU_EXPERTS, 2).values())
    routers = {f"blocks.1.moe.{x}.weight" for x in ("router", "noise")}
    assert {n for n, ranks in pieces(GELU_EXPERTS, 2, sequence=True).items() if ranks[0].summed} == rows | routers
    summed = {n for n, ranks in pieces(GATED_EXPERTS, 2, sequence=True).items() if ".moe." in n and ranks[0].summed}
    assert summed == {f"blocks.{i}.moe.router.{x}" for i, x in product(range(2), ("weight", "bias"))}


def test_every_expert_is_cut_like_an_mlp():
    of = {n.removeprefix("blocks.1.moe."): [p.local_shape for p in ranks] for n, ranks in pieces(GATED_EXPERTS, 3 + 1).items()}
    assert of["experts.up.weight"] == [(3, 2, 4, 48), *3 * [(3, 2, 3, 48)]]
    assert of["experts.down.weight"] == [(3, 48, 4), *3 * [(3, 48, 3)]]
    assert of["shared.up.weight"] == of["shared.gate.weight"] == [*2 * [(7, 48)], *2 * [(6, 48)]]
    assert of["shared.down.weight"] == [*2 * [(48, 7)], *2 * [(48, 6)]]
    assert of["router.weight"] == 4 * [(3, 48)] and of["router.bias"] == 4 * [(3,)]
    of = {n.removeprefix("blocks.1.moe."): [p.local_shape for p in ranks] for n, ranks in pieces(GELU_EXPERTS, 2).items()}
    assert of["experts.up.weight"] == [(5, 4, 24), (5, 3, 24)] and of["experts.up.bias"] == [(5, 4), (5, 3)]
    assert of["experts.down.bias"] == 2 * [(5, 24)]


@pytest.mark.parametrize("sequence", (False, True))
def test_a_stage_of_pieces_lies_as_it_is_used(sequence):
    """Query, key and value are one matrix; what all ranks hold whole is one slice at the start, the same on every rank, the sums in it."""
    first = set()
    for r in range(4):
        at = FlatMap([tensor.cut_layer(x, GPT, 4, r, sequence) for x in layers(GPT)])
        heads, _, _ = tensor.heads_of(GPT, 4, r)
        assert at.weight_spans[1]["qkv.weight"].shape == (3 * 4 * (heads.stop - heads.start), 24)
        places = list(at.names.values())
        assert [s.start for s in places] == [0, *(s.stop for s in places[:-1])] and places[-1].stop == at.size
        whole = [p.local_size == p.size for p in at.parameters.values()]
        assert whole == sorted(whole, reverse=True) and any(whole) and not all(whole)
        assert at.border == sum(p.size for p in at.parameters.values() if p.local_size == p.size)
        assert all(at.names[n].stop <= at.border for n, p in at.parameters.items() if p.summed)
        first.add((at.border, *(n for n, s in at.names.items() if s.stop <= at.border)))
    assert len(first) == 1


def test_first_values_do_not_depend_on_the_cut():
    for name, whole in parameters(LLAMA).items():
        want = initial(whole, 7)
        for p in pieces(LLAMA, 4)[name]:
            assert np.array_equal(initial(p, 7), want[p.slices])


@pytest.mark.parametrize(
    "model, plan, rows, says",
    (
        ({"heads": 4}, {"tp": 8}, 64, "heads = 4 .*tp <= 4"),
        ({"heads": 12, "kv_heads": 4}, {"tp": 6}, 64, "kv_heads = 4 .*plan.tp = 6.*tp <= 4 or 8"),
        ({"heads": 6, "kv_heads": 3}, {"tp": 4}, 64, "kv_heads = 3 .*tp <= 3 or 6"),
        ({"heads": 4, "vocabulary": 2}, {"tp": 3}, 64, "vocabulary = 2 .*tp <= 2"),
        ({"mlp_width": 1}, {"tp": 2}, 64, "mlp_width = 1 .*tp <= 1"),
        ({"moe": {"width": 3}}, {"tp": 4}, 64, "moe.width = 3 .*tp <= 3"),
        ({"moe": {"every": 2, "width": 9}, "mlp_width": 2}, {"tp": 4}, 64, "mlp_width = 2 .*tp <= 2"),
        ({}, {"tp": 4, "sequence": True}, 3, "3 rows .*tp <= 3"),
        ({}, {"sequence": True}, 64, "plan.tp = 1"),
    ),
)
def test_what_cannot_be_cut_is_refused_with_the_remedy(model, plan, rows, says):
    model = {"width": 24, **model}
    with pytest.raises(PlanError, match=says):
        tensor.check(config.build({"model": model, "plan": plan}), rows)


@pytest.mark.parametrize("t", (2, 4, 8))
def test_closed_forms_of_the_papers(t):
    """b = 3, s = 16, h = 64: 8 bsh (t - 1) / t sent a layer, with sequence parallelism 10; e sbh (4 + 12 / t) kept, 16 / t."""
    model = Model(width=64, heads=8, context=16)
    block, bsh = layers(model)[1], 3 * 16 * 64
    for sequence, sends, keeps in ((False, 8, 4 + 12 / t), (True, 10, 16 / t)):
        calls = tensor.sent(block, model, 48, 4, sequence)
        assert sum(n * tensor.link_elements(o, b / 4, t) for (o, b), n in calls.items()) == sends * bsh * (t - 1) / t
        assert tensor.layer_elements(48, 64, t, sequence) == sends * bsh * (t - 1) / t
        found = items(block, Shape.of(model, Plan(tp=t, sequence=sequence), Train(), 3))
        assert found.total() - found["log-sum-exp"] - found["norm statistics"] == 4 * bsh * keeps
        assert found["log-sum-exp"] == 4 * 48 * 8 // t
        expert_calls = tensor.sent(layers(replace(model, moe=Moe()))[1], model, 48, 4, sequence, routed=90)
        sums = {o: sum(n * b for (of, b), n in expert_calls.items() if of == o) for o, _ in expert_calls}
        weights = {"combine_weights": 90 * 4}
        assert sums == weights | ({"allgather": 5 * 4 * bsh, "reduce_scatter": 4 * 4 * bsh} if sequence else {"allreduce": 4 * 4 * bsh})
        assert calls.total() - sequence + 1 == expert_calls.total()
    again = items(block, Shape.of(model, Plan(tp=t, sequence=True, recompute="full"), Train(), 3))
    assert again == {"block inputs": 4 * bsh // t}


def test_bytes_of_all_stages_and_ranks_are_those_of_one():
    """What is cut is nowhere twice and nowhere missing: with sequence parallelism all but ids, labels and the loss's log-sum-exp."""
    one = stage_items(layers(GPT), Shape.of(GPT, Plan(), Train(), 3))
    cut = [Shape.of(GPT, Plan(tp=4, sequence=True), Train(), 3, r) for r in range(4)]
    many = [stage_items(stage, shape) for stage in cut_stages(GPT, "even", 2) for shape in cut]
    for item, total in one.items():
        whole = 4 if item in ("ids", "labels") else 1
        if item == "log-sum-exp":
            total += 3 * 3 * GPT.context * 8  # of the loss, on each rank
        assert sum(m[item] for m in many) == whole * total, item
