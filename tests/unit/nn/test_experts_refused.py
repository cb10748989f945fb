"""Mixtures of experts that cannot be: refused with the numbers and the remedy."""

from __future__ import annotations

import pytest

from hpcpar.config import build
from hpcpar.errors import PlanError
from hpcpar.forms import mixture
from hpcpar.forms.activations import Shape, items
from hpcpar.nn.describe import layers, parameters
from hpcpar.run import feasible, memory

REFUSED = {
    "more choices than experts": ({"k": 5, "experts": 4}, ["k = 5", "experts = 4", "k <= 4"]),
    "no block": ({"every": 3}, ["every = 3", "layers = 2"]),
    "switch": ({"gate": "switch"}, ["k = 2", '"switch"', "k = 1"]),
    "gshard": ({"gate": "gshard", "k": 3}, ["k = 3", "k = 2"]),
    "expert-choice": ({"gate": "expert-choice"}, ["capacity", "factor = 1.0"]),
    "hash": ({"gate": "hash", "balance": 0.1}, ["no router", "0.1"]),
    "balanced": ({"gate": "balanced", "z_loss": 0.1}, ["no router", "0.1"]),
    "jitter": ({"gate": "balanced", "jitter": 0.1}, ["no router", "jitter = 0.1"]),
    "groups of another gate": ({"expert_groups": 2}, ["expert_groups = 2", '"sigmoid-bias"']),
    "groups": ({"gate": "sigmoid-bias", "expert_groups": 3}, ["experts = 8", "expert_groups = 3", "divisor of 8"]),
    "groups of one": ({"gate": "sigmoid-bias", "expert_groups": 8}, ["expert_groups = 8", "2 or more"]),
    "limit": ({"gate": "sigmoid-bias", "expert_groups": 4, "limit": 5}, ["limit = 5", "at most 4"]),
    "too few groups": ({"gate": "sigmoid-bias", "expert_groups": 4, "limit": 1, "k": 3}, ["limit = 1", "k = 3"]),
}


@pytest.mark.parametrize("fields, words", REFUSED.values(), ids=REFUSED)
def test_refused(fields, words):
    model = build({"model": {"layers": 2, "moe": fields}}).model
    with pytest.raises(PlanError) as refusal:
        feasible.check_model(model)
    for word in words:
        assert word in str(refusal.value)


def test_unknown_keys_are_named():
    with pytest.raises(PlanError, match=r"model.moe.expert; did you mean model.moe.experts"):
        build({"model": {"moe": {"expert": 4}}})
    with pytest.raises(PlanError, match=r"model.moe.capacity.factors; did you mean model.moe.capacity.factor"):
        build({"model": {"moe": {"capacity": {"factors": 4}}}})
    with pytest.raises(PlanError, match=r"model.moe.gate"):
        build({"model": {"moe": {"gate": "top2"}}})


@pytest.mark.parametrize(
    "gate, plan, words",
    [
        ("topk", {"dp": 2, "sync": {"mode": "asp"}}, ["experts = 8", '"asp"', "1 / 2", '"bsp"']),
        ("hash", {"dp": 2, "sync": {"mode": "ssp"}}, ['"ssp"', '"bsp"']),
        ("sigmoid-bias", {"dp": 3, "sync": {"mode": "local"}}, ['"local"', "1 / 3", '"bsp"']),
        ("topk", {"dp": 2, "sync": {"compress": "top-k"}}, ['"top-k"', '"none"']),
        ("topk", {"offload": {"device_mb": 64}}, ["experts = 8", "device_mb = 64", "leave the table out"]),
    ],
)
def test_plans_that_routing_does_not_know(gate, plan, words):
    with pytest.raises(PlanError) as refusal:
        mixture.check_sharing(build({"model": {"moe": {"gate": gate}}, "plan": plan}))
    for word in words:
        assert word in str(refusal.value)
    mixture.check_sharing(build({"model": {"moe": {"gate": gate}}}))
    mixture.check_sharing(build({"plan": plan}))


def test_every_plan_that_routing_does_not_know_is_refused_before_step_1():
    """The checks of a run reach those of experts and of their cut."""
    with pytest.raises(PlanError, match=r"experts = 8 with plan.sync.mode = .asp."):
        feasible.check_sharing(build({"model": {"moe": {}}, "plan": {"dp": 2, "sync": {"mode": "asp"}}}))
    feasible.check_sharing(build({"model": {"moe": {}}, "plan": {"tp": 2, "cp": 2, "sequence": True}}))
    with pytest.raises(PlanError, match=r"plan.ep = 3 does not divide"):
        feasible.check_sharing(build({"model": {"moe": {}}, "plan": {"dp": 2, "ep": 3}}))


@pytest.mark.parametrize(
    "plan, words",
    [
        ({"dp": 4, "ep": 3}, ["plan.ep = 3", "4 x 1", "divisor of 4"]),
        ({"dp": 12, "ep": 12}, ["experts = 8", "plan.ep = 12", "ep <= 8"]),
        ({"dp": 4, "ep": 2, "zero": 2}, ["plan.zero = 2", "plan.ep = 2", "4 replicas", "2 hold the same", "zero <= 1"]),
        ({"dp": 4, "ep": 2, "zero": 3}, ["plan.zero = 3", "ep = 1"]),
        ({"dp": 2, "ep": 2, "schedule": "pipedream-2bw", "pp": 2}, ["plan.ep = 2", "pipedream-2bw", '"1f1b"', "ep = 1"]),
        ({"pp": 2, "ep": 2, "replicas": [2, 1], "schedule": "pipedream"}, ["plan.ep = 2", "plan.replicas = [2, 1]", "ep = 1"]),
    ],
)
def test_cuts_of_experts_that_cannot_be(plan, words):
    cfg = build({"model": {"layers": 2, "moe": {}}, "plan": plan})
    with pytest.raises(PlanError) as refusal:
        memory.held(cfg)
    for word in words:
        assert word in str(refusal.value)


def test_experts_are_not_cut_where_there_are_none_or_no_arithmetic():
    with pytest.raises(PlanError, match=r"plan.ep = 2 cuts experts, and the model has none; use plan.ep = 1 or a \[model.moe\]"):
        feasible.check_sharing(build({"plan": {"dp": 2, "ep": 2}}))
    with pytest.raises(PlanError, match=r"train.emulate with plan.ep = 2.*use plan.ep = 1"):
        tables = {"model": {"moe": {}}, "plan": {"dp": 2, "ep": 2}, "train": {"emulate": {"F": 0.1}}}
        feasible.check_sharing(build(tables))


def test_what_experts_keep_is_not_itemised():
    cfg = build({"model": {"layers": 2, "moe": {"every": 2}}})
    _, dense, mixture, _ = layers(cfg.model)
    shape = Shape.of(cfg.model, cfg.plan, cfg.train, 2)
    assert items(dense, shape)
    with pytest.raises(PlanError, match=r"blocks.1 has model.moe.experts = 8"):
        items(mixture, shape)
    (held,) = memory.held(cfg)
    assert held.report()["activations"] is None and held.kinds["parameters"] == 4 * sum(p.size for p in parameters(cfg.model).values())
    cut = memory.held(build({"model": {"layers": 2, "moe": {"every": 2}}, "plan": {"tp": 2, "cp": 2, "sequence": True}}))
    of = [h.kinds["parameters"] for h in cut for _ in h.ranks]
    whole = sum(p.size for n, p in parameters(cfg.model).items() if n.endswith(("out.bias", "down.bias")) or "norm" in n or "router" in n)
    assert sum(of) == 2 * (held.kinds["parameters"] + 4 * (whole + parameters(cfg.model)["positions.weight"].size))


def test_a_microbatch_holds_whole_groups():
    tables = {"model": {"moe": {"group": 4}}, "train": {"batch": 24}}
    assert feasible.microbatch_size(build({**tables, "plan": {"microbatches": 3}})) == 8
    with pytest.raises(PlanError, match=r"microbatch of 6 samples .*group = 4"):
        feasible.microbatch_size(build({**tables, "plan": {"microbatches": 4}}))
