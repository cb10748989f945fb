"""The layer of experts gives the same on the GPU as on the CPU, for every gate: decisions exactly, the rest to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.config import build
from hpcpar.nn import moe
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.gates import GATES
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import FlatMap

CAPACITY = {"policy": "floor", "factor": 1.0}
MORE: dict[str, dict[str, Any]] = {
    "switch": {"k": 1, "jitter": 0.2},
    "base": {"k": 1},
    "sigmoid-bias": {"expert_groups": 2, "limit": 1, "balance": 0.2},
}
ORDERS = ("dropless", "position", "probability", "random")


def results(xp: Any, gate: str, order: str) -> dict[str, Any]:
    """One forward and backward of the layer."""
    fields = {"experts": 4, "gate": gate, "group": 2, "shared": 1, "dropout": 0.2, **MORE.get(gate, {})}
    if order != "dropless":
        fields["capacity"] = {**CAPACITY, "order": order}
    if GATES[gate].ROUTER:
        fields["z_loss"] = 0.1
    model = build({"model": {"layers": 1, "width": 8, "heads": 2, "context": 5, "mlp_width": 6, "moe": fields}}).model
    at_map, draw = FlatMap([layers(model)[1]]), np.random.default_rng(4)
    flat = xp.asarray(draw.normal(0, 0.5, at_map.size))
    h, dy = (xp.asarray(draw.normal(size=(20, 8))) for _ in range(2))
    frame = Frame.of(model, 1, xp, "float64")
    at, w = Microbatch(frame, 4, 5, step=1, first=2, batch=8), at_map.weights(flat)[0]
    gradients = Gradients(at_map, xp, "float64")
    y, saved = moe.forward(h, w, at, "blocks.0")
    dh = moe.backward(dy, saved, w, lambda *item: gradients.add(0, *item), at, "blocks.0")
    (seen,) = frame.tally.take(1, "blocks.0.moe")
    rest = (seen.dropped, seen.unrouted, seen.entropy, seen.balance, seen.z)
    named = {n: g for n, g in gradients.by_name().items() if ".moe." in n}
    return {
        "y": y,
        "dh": dh,
        **named,
        "tokens": saved[0].tokens,
        "experts": saved[0].experts,
        "weights": saved[0].weights,
        "seen": np.array([*seen.tokens, *(seen.wanted or ()), *map(float, rest)]),
    }


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gate", GATES)
def test_same_on_both(gate: str, order: str) -> None:
    import cupy

    if gate == "expert-choice" and order == "dropless":
        pytest.skip("experts need a capacity to choose by")
    want, found = results(np, gate, order), results(cupy, gate, order)
    for name, a in want.items():
        b = found[name]
        assert name == "seen" or isinstance(b, cupy.ndarray), f"{name} left the GPU"
        b = b if isinstance(b, np.ndarray) else b.get()
        if a.dtype.kind in "iu":
            assert np.array_equal(a, b), name
        else:
            assert a.dtype == b.dtype and np.abs(a - b).max(initial=0) <= 1e-12 * max(1, np.abs(a).max(initial=0)), name
