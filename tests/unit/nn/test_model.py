"""The serial model against finite differences: every parameter by name, both styles, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from hpcpar.config import Model
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import initial
from hpcpar.nn.stage import Stage

GPT = {"layers": 2, "width": 6, "heads": 3, "context": 5, "vocabulary": 11, "mlp_width": 7}
LLAMA = {**GPT, "width": 8, "heads": 4, "kv_heads": 2, "norm": "rms", "position": "rotary", "mlp": "swiglu", "bias": False}
MODELS = {
    "gpt tied": GPT,
    "gpt untied": {**GPT, "tied": False},
    "gpt without biases": {**GPT, "bias": False},
    "gpt dropout": {**GPT, "dropout": 0.3},
    "llama tied": LLAMA,
    "llama untied": {**LLAMA, "tied": False},
}
SAMPLES = 3


class OneProcess:
    """The whole model as one stage, with its loss as a function of flat weights."""

    def __init__(self, fields: dict, recompute: str = "none", split: bool = False):
        self.model = Model(**fields)
        self.stage = Stage(layers(self.model), Frame.of(self.model, 3, np, "float64"), recompute)
        self.split = split
        draw = np.random.default_rng(5)
        shape = (SAMPLES, self.model.context)
        self.ids = draw.integers(0, self.model.vocabulary, shape).astype(np.int32)
        self.labels = draw.integers(-1, self.model.vocabulary, shape).astype(np.int32).reshape(-1)
        self.at = Microbatch(self.stage.frame, SAMPLES, self.model.context, step=2, first=4)
        self.flat = np.zeros(self.stage.map.size)
        for name, view in self.stage.map.by_name(self.flat).items():
            # far from the small first values, where most second derivatives vanish
            view[...] = initial(self.stage.map.parameters[name], 1, dtype="float64") + draw.normal(0, 0.3, view.shape)

    def loss(self, flat: np.ndarray, scale: float = 0.37) -> float:
        return scale * self.stage.forward(self.ids, self.labels, self.stage.map.weights(flat), self.at)[0]

    def gradients(self, scale: float = 0.37) -> dict[str, np.ndarray]:
        weights = self.stage.map.weights(self.flat)
        out = Gradients(self.stage.map, np, "float64")
        out.flat[:] = np.nan  # what is not written shows
        out.last = True
        _, saved = self.stage.forward(self.ids, self.labels, weights, self.at)
        if self.split:
            held: list = []
            self.stage.backward(scale, saved, weights, lambda *item: held.append(item), self.at)
            for item in held:
                out.add(*item)
        else:
            self.stage.backward(scale, saved, weights, out.add, self.at)
        return out.by_name()


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_every_gradient_by_finite_differences(fields):
    one = OneProcess(fields)
    draw = np.random.default_rng(11)
    for name, gradient in one.gradients().items():
        for _ in range(3):
            direction = np.zeros_like(one.flat)
            one.stage.map.by_name(direction)[name][...] = draw.normal(size=gradient.shape)
            slope = _slope(lambda h, along=direction: one.loss(one.flat + h * along))
            along = float((one.stage.map.by_name(direction)[name] * gradient).sum())
            assert slope == pytest.approx(along, rel=2e-7, abs=2e-9), name


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_split_backward_and_recompute_change_no_bit(fields):
    want = OneProcess(fields).gradients()
    for other in (OneProcess(fields, split=True), OneProcess(fields, "full"), OneProcess(fields, "full", split=True)):
        got = other.gradients()
        assert got.keys() == want.keys()
        for name in want:
            assert np.array_equal(got[name], want[name]), name


def _slope(f, h=2e-4):
    """Central differences of fourth order."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


def test_all_labels_masked_give_zero_gradients():
    one = OneProcess(GPT)
    one.labels[:] = -1
    assert one.loss(one.flat) == 0.0
    for name, gradient in one.gradients().items():
        assert not gradient.any(), name


def test_a_second_microbatch_adds():
    one = OneProcess(GPT)
    weights, out = one.stage.map.weights(one.flat), Gradients(one.stage.map, np, "float64")
    for k in range(2):
        out.last = k == 1
        _, saved = one.stage.forward(one.ids, one.labels, weights, one.at)
        one.stage.backward(0.37, saved, weights, out.add, one.at)
    for name, gradient in one.gradients().items():
        assert np.allclose(out.by_name()[name], 2 * gradient, rtol=1e-13, atol=1e-15), name
