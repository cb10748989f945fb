"""What a mixture of experts costs beside a dense MLP of the same active arithmetic: their seconds in turn, one process.

experts   router, 8 experts of width F, top-2, gather, combine        dense    an MLP of width 2 F        forward and backward
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar import config
from hpcpar.measure.bench import timed
from hpcpar.nn import block
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import Layer, has_experts, layers
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import FlatMap, initial
from hpcpar.ops.warm import warm
from hpcpar.run import settings

MODEL = {"layers": 1, "width": 384, "heads": 6, "context": 256, "vocabulary": 256}
EXPERTS: dict[str, Any] = {"experts": 8, "gate": "topk", "k": 2}
SAMPLES = 8


def half(model: config.Model) -> tuple[Callable[[], None], int]:
    """(forward and backward of the second half of a block: norm, MLP or experts, residual; weights added up), and its arithmetic."""
    layer: Layer = layers(model)[1]
    at_map = FlatMap([layer])
    flat = np.zeros(at_map.size, np.float32)
    for name, view in at_map.by_name(flat).items():
        view[...] = initial(at_map.parameters[name], 1)
    frame = Frame.of(model, 1, np, "float32")
    at, w, gradients = Microbatch(frame, SAMPLES, model.context), at_map.weights(flat)[0], Gradients(at_map, np, "float32")
    draw = np.random.default_rng(1)
    x, dy = (draw.standard_normal((SAMPLES * model.context, model.width)).astype(np.float32) for _ in range(2))
    forward, backward = (
        (block.experts_forward, block.experts_backward) if has_experts(model, 0) else (block.mlp_forward, block.mlp_backward)
    )

    def work() -> None:
        _, saved = forward(x, w, at, "blocks.0")
        backward(dy, saved, w, lambda *item: gradients.add(0, *item), at, "blocks.0")

    attention = sum(p.size for p in layer.parameters if ".attention." in p.name and p.name.endswith("weight"))
    scores = 2 * model.width * model.context * (model.context + 1)
    return work, 3 * SAMPLES * (layer.flops - 2 * model.context * attention - scores)


def experts(rounds: int = 15) -> dict[str, Any]:
    """Seconds of the layer of experts over those of the dense one: the median over pairs, one after the other, one thread."""
    settings.set_threads(1)
    settings.keep_memory()
    warm("float32")
    inner = config.build({"model": MODEL}).model.inner
    sparse = config.build({"model": {**MODEL, "moe": EXPERTS}}).model
    dense = config.build({"model": {**MODEL, "mlp_width": EXPERTS["k"] * inner}}).model
    (one, flops), (two, dense_flops) = half(sparse), half(dense)
    for work in (one, two, one, two):
        work()
    pairs = [(timed(one), timed(two)) for _ in range(rounds)]
    ratios = [a / b for a, b in pairs]
    return {
        "experts_s": statistics.median(a for a, _ in pairs),
        "dense_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "experts_flops": flops,
        "dense_flops": dense_flops,
    }
