"""Bytes of activations: the formulas against what the layers save and against the memory that they take while they run."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

from hpcpar.config import Model
from hpcpar.forms.activations import Shape, backward_bytes, forward_bytes, saved_bytes
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.stage import Stage
from hpcpar.ops.warm import warm

GPT = Model(layers=1, width=48, heads=3, context=37, vocabulary=301)
LLAMA = Model(layers=1, width=48, heads=4, kv_heads=2, context=37, vocabulary=301, norm="rms", position="rotary", mlp="swiglu", bias=False)
SAMPLES = 40
ASIDE = 120_000  # inside one operation: the scores of a sample, the product of a weight's gradient; vectors and Python's own


def arrays(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, tuple | list):
        return [a for t in tree for a in arrays(t)]
    return [tree]


class Watched(list):
    """Keeps what layers save, and the most memory of each layer's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: list[int] = []
        self.before = 0

    def append(self, saved: Any) -> None:
        self.peaks.append(tracemalloc.get_traced_memory()[1] - self.before)
        super().append(saved)


class Weights:
    """Looks at the memory where a layer begins."""

    def __init__(self, views: list[dict[str, Any]], watched: Watched):
        self.views, self.watched = views, watched

    def __getitem__(self, layer: int) -> dict[str, Any]:
        gc.collect()
        tracemalloc.reset_peak()
        self.watched.before = tracemalloc.get_traced_memory()[0]
        return self.views[layer]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_formulas_are_the_memory(model: Model, dropout: float, dtype: str, recompute: str) -> None:
    warm(dtype)
    model = Model(**{f: getattr(model, f) for f in model.__struct_fields__} | {"dropout": dropout})
    shape = Shape(model, SAMPLES, np.dtype(dtype).itemsize, recompute == "full")
    frame = Frame.of(model, 1, np, dtype)
    stage = Stage(layers(model), frame, recompute)
    rng = np.random.default_rng(1)
    flat = rng.standard_normal(stage.map.size).astype(dtype) * 0.1
    ids = rng.integers(0, 301, (SAMPLES, 37)).astype(np.int32)
    at = Microbatch(frame, SAMPLES, 37)
    gradients = Gradients(stage.map, np, dtype)

    def step() -> tuple[Watched, list[Any], list[tuple[int, int]]]:
        watched, peaks = Watched(), []
        weights = Weights(stage.map.weights(flat), watched)

        def sink(layer: int, part: str, backward_weight: Any, held: Any) -> None:
            gradients.add(layer, part, backward_weight, held)
            peaks.append((layer, tracemalloc.get_traced_memory()[1] - watched.before))

        _, saved = stage.forward(ids, ids.reshape(-1), weights, at, keep=watched)
        sizes = [[(a.nbytes, a.base) for a in arrays(t) if a.dtype.kind == "f"] for t in saved]
        stage.backward(1.0, saved, weights, sink, at)
        return watched, sizes, peaks

    step()  # compiles
    tracemalloc.start()
    watched, sizes, peaks = step()
    tracemalloc.stop()
    every = layers(model)
    assert [sum(n for n, _ in t) for t in sizes] == [saved_bytes(layer, shape) for layer in every]
    assert all(base is None for t in sizes for _, base in t), (
        "an array of what is saved is a view: its memory would stay where it is when it moves"
    )
    border = shape.border_bytes
    for i, layer in enumerate(every):
        made = saved_bytes(layer, shape) - border * (i > 0)  # its input was there before
        want = made + forward_bytes(layer, shape) + border * (layer.kind != "head")
        assert 0.99 * want - 4096 <= watched.peaks[i] <= want + ASIDE, (layer.name, watched.peaks[i], want)
        # the gradient of the output and what is saved were there before; the head's takes the place of the logits
        want = backward_bytes(layer, shape) + border * (layer.kind != "embedding")
        most = max(p for at_layer, p in peaks if at_layer == i)
        assert 0.99 * want - 4096 <= most <= want + ASIDE, (layer.name, most, want)
