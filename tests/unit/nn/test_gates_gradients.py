"""Every gate, with its auxiliary losses and all that follows it, against finite differences: tokens and every parameter by name."""

from __future__ import annotations

import numpy as np
import pytest
from layer_of_experts import GATES, OneLayer, slope

CAPACITY = {"policy": "floor", "factor": 0.7}  # of 4 x 2 / 5 choices: one
SETTINGS = {
    "dropless": {},
    "capacity": {"capacity": CAPACITY, "group": 2},
    "probability": {"capacity": {**CAPACITY, "order": "probability"}},
    "random": {"capacity": {**CAPACITY, "order": "random"}, "group": 4},
}
CASES = [(gate, {**more, **setting}, f"{gate} {name}") for gate, more in GATES.items() for name, setting in SETTINGS.items()]
CASES += [
    (gate, {**GATES[gate], "capacity": CAPACITY, "normalise": how}, f"{gate} {how}")
    for gate in GATES
    for how in ("none", "before", "after")
]
CASES = [
    (gate, {"group": 2, **fields} if gate in ("switch", "base") else fields, name) for gate, fields, name in CASES
]  # top-1 needs twice the tokens
CASES += [
    ("topk", {"k": 5}, "topk all"),
    ("noisy-topk", {"k": 5}, "noisy-topk all"),
    ("noisy-topk", {"k": 1}, "noisy-topk one"),
    ("topk", {"k": 1, "experts": 1}, "topk one expert"),
    ("switch", {"k": 1, "experts": 1}, "switch one expert"),
    ("topk", {"k": 2, "experts": 70}, "topk more experts than tokens"),
    ("sigmoid-bias", {"k": 2, "experts": 6, "expert_groups": 3, "limit": 2, "balance": 0.5, "scale": 2.5}, "sigmoid-bias groups"),
    ("topk", {"k": 2, "dropout": 0.3, "shared": 2}, "topk shared dropout"),
    ("switch", {"k": 1, "jitter": 0.3}, "switch jitter"),
    ("noisy-topk", {"k": 2, "jitter": 0.3}, "noisy-topk jitter"),
]


@pytest.mark.parametrize("gate, fields", [c[:2] for c in CASES], ids=[c[2] for c in CASES])
def test_by_finite_differences(gate, fields):
    more = {} if gate in ("hash", "balanced") else {"balance": 0.7, "z_loss": 0.3}
    one = OneLayer({"gate": gate, **more, **fields})
    assert sum(one.routing().counts) > 0
    check(one)


@pytest.mark.parametrize("gate", ["topk", "sigmoid-bias"])
def test_swiglu_experts(gate):
    check(OneLayer({"gate": gate, "shared": 1, "balance": 0.3}, mlp="swiglu", bias=False))
    check(OneLayer({"gate": gate, "shared": 1, "z_loss": 0.3}, mlp="swiglu", bias=True))


def check(one: OneLayer) -> None:
    draw = np.random.default_rng(8)
    dh, named = one.gradients()
    one.auxiliary()
    arrays = {"h": (one.h, dh), **{n: (one.map.by_name(one.flat)[n], g) for n, g in named.items() if not n.endswith("router.bias")}}
    for name, (array, gradient) in arrays.items():
        assert np.isfinite(gradient).all(), name
        found = 0
        for _ in range(40):
            way = draw.normal(size=array.shape) / max(1, array.size) ** 0.25
            along = slope(one, array, way)
            if along is not None:
                assert along == pytest.approx(float((way * gradient).sum()), rel=3e-7, abs=3e-8), name
                found += 1
            if found == 2:
                break
        assert found == 2, f"{name}: every direction changes a decision"
