"""Who holds which experts and meets whom, worked out by hand; sizes and bytes by arithmetic."""

from __future__ import annotations

import pytest

from hpcpar.config import build
from hpcpar.forms import expert, tensor
from hpcpar.mesh import Mesh
from hpcpar.nn.describe import layers, parameters
from hpcpar.nn.parameters import FlatMap
from hpcpar.run import expert as meet
from hpcpar.run.memory import held
from hpcpar.schedule.generate import generate

MOE = {"experts": 5, "every": 2}
MODEL = {"layers": 2, "width": 8, "heads": 2, "context": 4, "vocabulary": 16, "mlp_width": 6, "moe": MOE}


def test_groups_by_hand():
    """The picture of hpcpar/run/expert.py."""
    plan = build({"plan": {"dp": 4, "pp": 2, "ep": 2}}).plan
    mesh, schedule = Mesh.of(plan), generate("1f1b", stages=2, microbatches=2)
    assert meet.groups(mesh, schedule, plan) == {
        "ep": {(0, 1), (2, 3), (4, 5), (6, 7)},
        "expert_dp": {(0, 2), (1, 3), (4, 6), (5, 7)},
        "pp": {(0, 1, 4, 5), (2, 3, 6, 7)},
    }
    copies = generate("chimera", stages=2, microbatches=2)
    assert meet.groups(mesh, copies, plan)["expert_dp"] == {(0, 2, 4, 6), (1, 3, 5, 7)}
    assert [meet.place_of(mesh, 2, r) for r in range(4)] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert meet.groups(mesh, schedule, build({"plan": {"dp": 4, "pp": 2}}).plan) == {}


def test_groups_along_cp_and_within_a_place_along_tp():
    """dp 2 x cp 2 x tp 2: rows go between ranks of one place along tp; the norm adds up all of them."""
    plan = build({"plan": {"dp": 2, "cp": 2, "tp": 2, "ep": 4}}).plan
    mesh, schedule = Mesh.of(plan), generate("1f1b", stages=1, microbatches=1)
    found = meet.groups(mesh, schedule, plan)
    assert found["ep"] == {(0, 2, 4, 6), (1, 3, 5, 7)} and found["pp"] == {tuple(range(8))}
    assert found["expert_dp"] == {(r,) for r in range(8)}


@pytest.mark.parametrize("mlp", ("gelu", "swiglu"))
def test_pieces_cover_every_expert_once_and_lie_last(mlp):
    model = build({"model": {**MODEL, "mlp": mlp}}).model
    whole = parameters(model)
    seen = {n: [0] * 5 for n, p in whole.items() if p.of_experts}
    for index in range(2):
        cut = [expert.cut_layer(layer, 2, index) for layer in layers(model)]
        at = FlatMap(cut)
        apart = [n for n, p in at.parameters.items() if p.dispersed]
        assert sorted(apart) == sorted(seen)
        for name, span in at.names.items():
            assert (span.start >= at.common) == (name in apart) and at.parameters[name].counts
        for name in apart:
            for e in range(*at.parameters[name].slices[0].indices(5)):
                seen[name][e] += 1
        sums = expert.summed_elements(cut)
        assert sums == {"dp": at.common, "expert_dp": at.size - at.common}
    assert all(times == [1] * 5 for times in seen.values())
    uncut = FlatMap(layers(model))
    assert uncut.common == uncut.size and [layer.parameters for layer in layers(model)] == [
        expert.cut_layer(layer, 1, 0).parameters for layer in layers(model)
    ]


def test_a_cut_over_tp_keeps_its_box_and_holders():
    model = build({"model": MODEL}).model
    layer = tensor.cut_layer(layers(model)[2], model, 2, 1, False)
    for before, after in zip(layer.parameters, expert.cut_layer(layer, 2, 1).parameters, strict=True):
        if not after.of_experts:
            assert before == after
            continue
        assert after.piece.box == ((3, 5), *before.piece.box[1:])
        assert (after.piece.holders, after.piece.index, after.piece.summed) == (before.piece.holders, 1, before.piece.summed)


@pytest.mark.parametrize("zero", (0, 1))
def test_memory_by_rank(zero):
    """Weights and gradients of three or two experts; under zero 1 Adam's state of each is with one of its two replicas."""
    plan = {"dp": 4, "ep": 2, "zero": zero}
    cfg = build({"model": MODEL, "plan": plan, "train": {"batch": 8}})
    every = parameters(cfg.model)
    of_experts = sum(p.size for p in every.values() if p.of_experts)
    dense = sum(p.size for p in every.values()) - of_experts
    ranks = {r: h for h in held(cfg) for r in h.ranks}
    state = 0
    for rank, h in ranks.items():
        mine = dense + of_experts // 5 * (3, 2)[rank % 2]
        assert h.elements == mine and h.kinds["parameters"] == h.kinds["gradients"] == 4 * mine
        state += h.kinds["optimizer"]
        assert h.by_formula["optimizer"] == pytest.approx(8 * (dense / 4 + (mine - dense) / 2) if zero else 8 * mine)
        assert ("N = 2 of the" in h.formula) == bool(zero)
    assert state == 8 * (dense + of_experts if zero else 4 * dense + 2 * of_experts)
