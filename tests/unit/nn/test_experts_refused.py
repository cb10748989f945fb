"""Mixtures of experts that cannot be: refused with the numbers and the remedy."""

from __future__ import annotations

import pytest

from hpcpar.config import build
from hpcpar.errors import PlanError
from hpcpar.forms import experts
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
        ("topk", {"tp": 2}, ["plan.tp = 2", "use tp = 1"]),
        ("topk", {"cp": 2}, ["plan.cp = 2", "cp = 1"]),
        ("sigmoid-bias", {"zero": 1}, ["plan.zero = 1", "use zero = 0"]),
        ("topk", {"dp": 2, "sync": {"mode": "asp"}}, ["experts = 8", '"asp"', "1 / 2", '"bsp"']),
        ("hash", {"dp": 2, "sync": {"mode": "ssp"}}, ['"ssp"', '"bsp"']),
        ("sigmoid-bias", {"dp": 3, "sync": {"mode": "local"}}, ['"local"', "1 / 3", '"bsp"']),
        ("topk", {"dp": 2, "sync": {"compress": "top-k"}}, ['"top-k"', '"none"']),
        ("topk", {"offload": {"device_mb": 64}}, ["experts = 8", "device_mb = 64", "leave the table out"]),
    ],
)
def test_plans_that_routing_does_not_know(gate, plan, words):
    with pytest.raises(PlanError) as refusal:
        experts.check_sharing(build({"model": {"moe": {"gate": gate}}, "plan": plan}))
    for word in words:
        assert word in str(refusal.value)
    experts.check_sharing(build({"model": {"moe": {"gate": gate}}}))
    experts.check_sharing(build({"plan": plan}))


def test_every_plan_that_routing_does_not_know_is_refused_before_step_1():
    """The checks of a run reach those of experts, and an axis of experts has nothing to cut yet."""
    with pytest.raises(PlanError, match=r"experts = 8 with plan.tp = 2"):
        feasible.check_sharing(build({"model": {"moe": {}}, "plan": {"tp": 2}}))
    with pytest.raises(PlanError, match=r"plan.ep = 2.*use plan.ep = 1"):
        feasible.check_plan(build({"model": {"moe": {}}, "plan": {"dp": 2, "ep": 2}}).plan, 2)


def test_what_experts_keep_is_not_itemised():
    cfg = build({"model": {"layers": 2, "moe": {"every": 2}}})
    _, dense, mixture, _ = layers(cfg.model)
    shape = Shape.of(cfg.model, cfg.plan, cfg.train, 2)
    assert items(dense, shape)
    with pytest.raises(PlanError, match=r"blocks.1 has model.moe.experts = 8"):
        items(mixture, shape)
    (held,) = memory.held(cfg)
    assert held.report()["activations"] is None and held.kinds["parameters"] == 4 * sum(p.size for p in parameters(cfg.model).values())


def test_a_microbatch_holds_whole_groups():
    tables = {"model": {"moe": {"group": 4}}, "train": {"batch": 24}}
    assert feasible.microbatch_size(build({**tables, "plan": {"microbatches": 3}})) == 8
    with pytest.raises(PlanError, match=r"microbatch of 6 samples .*group = 4"):
        feasible.microbatch_size(build({**tables, "plan": {"microbatches": 4}}))
