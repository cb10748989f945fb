"""One mixture-of-experts layer alone, in float64, with a loss of its output and of its auxiliary losses, for finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.config import Moe, build
from hpcpar.nn import moe, router
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import FlatMap

GATES: dict[str, dict[str, Any]] = {
    "noisy-topk": {"k": 2},
    "gshard": {"k": 2},
    "switch": {"k": 1},
    "topk": {"k": 3},
    "sigmoid-bias": {"k": 2},
    "expert-choice": {"k": 2, "capacity": {"factor": 1.0}},
    "base": {"k": 1},
    "hash": {"k": 2},
    "balanced": {"k": 2},
}


class OneLayer:
    """The MoE layer of a block of a model with width 6, T = 4; `samples` of them, routed in groups."""

    def __init__(self, fields: dict[str, Any], samples: int = 4, seed: int = 3, positions: int = 4, **model: Any):
        table = {"layers": 1, "width": 6, "heads": 2, "context": positions, "vocabulary": 7, "mlp_width": 5, "bias": True, **model}
        self.model = build({"model": {**table, "moe": {"experts": 5, **fields}}}).model
        self.moe: Moe = self.model.moe  # type: ignore[assignment]
        self.map = FlatMap([layers(self.model)[1]])
        self.frame = Frame.of(self.model, 1, np, "float64")
        self.at = Microbatch(self.frame, samples, positions, step=2, first=3, batch=2 * samples)
        draw = np.random.default_rng(seed)
        self.flat = draw.normal(0, 0.6, self.map.size)
        for span in self.map.balanced():
            self.flat[span.start : span.stop] = draw.normal(0, 0.2, span.stop - span.start)
        self.h = draw.normal(size=(samples * positions, 6))
        self.dy = draw.normal(size=self.h.shape)
        self.names = [n for n in self.map.names if ".moe." in n]

    @property
    def weights(self) -> dict[str, Any]:
        return self.map.weights(self.flat)[0]

    def forward(self) -> tuple[np.ndarray, tuple]:
        return moe.forward(self.h.copy(), self.weights, self.at, "blocks.0")

    def loss(self) -> float:
        y, _ = self.forward()
        return float((y * self.dy).sum()) + self.auxiliary()

    def auxiliary(self) -> float:
        """Of the forward before."""
        return sum(float(s.balance) + float(s.z) for s in self.frame.tally.take(self.at.step, "blocks.0.moe"))

    def routing(self) -> router.Routing:
        return router.route(self.h, self.weights, self.at, "blocks.0.moe")

    def decided(self) -> tuple:
        """What must not change while differences are taken."""
        r = self.routing()
        parts = (r.choice.order, r.keep) if r.choice.skipped is None else (r.choice.order, r.keep, r.choice.skipped)
        return tuple(p.copy() for p in parts)

    def gradients(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """dh and the gradients by name."""
        out = Gradients(self.map, np, "float64")
        out.flat[:] = np.nan  # what is not written shows
        _, saved = self.forward()
        dh = moe.backward(self.dy.copy(), saved, self.weights, lambda *item: out.add(0, *item), self.at, "blocks.0")
        return dh, {n: out.by_name()[n] for n in self.names}


def slope(one: OneLayer, array: np.ndarray, way: np.ndarray, h: float = 2e-5) -> float | None:
    """The derivative of the loss along `way` in `array`, by central differences of fourth order; None if a decision changes."""
    kept, want = array.copy(), one.decided()
    found = {}
    for step in (2, 1, -1, -2):
        array[...] = kept + step * h * way
        if not all(np.array_equal(a, b) for a, b in zip(want, one.decided(), strict=True)):
            array[...] = kept
            return None
        found[step] = one.loss()
    array[...] = kept
    return (8 * (found[1] - found[-1]) - (found[2] - found[-2])) / (12 * h)
