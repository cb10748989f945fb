"""The oracle of replicas that do not simply sum their gradients: one process that holds every worker and does what the papers say.

local      each worker steps alone; now and then   delta = start - mean   v = mu v + delta   w = start - eta (delta + mu v)
compressed all workers' gradients, through a codec written once more in NumPy, then one update
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from proof import Ran

from hpcpar.data import Corpus
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers, parameters
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import initial
from hpcpar.nn.stage import Stage
from hpcpar.ops.update import square_sum
from hpcpar.optim import OPTIMIZERS, rate


class Model:
    """The whole model in one process, with no weights of its own."""

    def __init__(self, cfg: Any):
        self.cfg, t = cfg, cfg.train
        self.stage = Stage(layers(cfg.model), Frame.of(cfg.model, t.seed, np, "float64"))
        self.map, self.corpus = self.stage.map, Corpus.of(cfg.data, cfg.model, t.seed)
        self.rule = OPTIMIZERS[t.optimizer].of(t)
        self.workers, self.pieces = cfg.plan.dp, cfg.plan.microbatches * cfg.plan.accumulate
        self.size = t.batch // (self.workers * self.pieces)

    def first(self) -> np.ndarray:
        """The first weights."""
        flat = np.zeros(self.map.size)
        for name, view in self.map.by_name(flat).items():
            view[...] = initial(self.map.parameters[name], self.cfg.train.seed, dtype="float64")
        return flat

    def labels(self, step: int, worker: int) -> int:
        """Labels that count, of a worker's share of a step."""
        starts = [step * self.cfg.train.batch + (k * self.workers + worker) * self.size for k in range(self.pieces)]
        return sum(int((self.corpus.batch(at, self.size)[1] >= 0).sum()) for at in starts)

    def gradient(self, weights: np.ndarray, step: int, worker: int, count: int) -> tuple[float, np.ndarray]:
        """(sum of losses, gradient of that sum over `count`) of a worker's share of a step."""
        total, found, views = 0.0, Gradients(self.map, np, "float64"), self.map.weights(weights)
        for k in range(self.pieces):
            place = (k * self.workers + worker) * self.size
            ids, labels = self.corpus.batch(step * self.cfg.train.batch + place, self.size)
            at = Microbatch(self.stage.frame, self.size, self.cfg.model.context, step, place)
            loss, saved = self.stage.forward(ids, labels.reshape(-1), views, at)
            total += loss
            found.last = k == self.pieces - 1
            self.stage.backward(1.0 / count, saved, views, found.add, at)
        return total, found.flat[: self.map.size].copy()

    def norm(self, flat: np.ndarray) -> float:
        """The norm of a gradient."""
        named, total = self.map.by_name(flat), 0.0
        for name in parameters(self.cfg.model):
            total += square_sum(named[name].reshape(-1))
        return math.sqrt(total) if math.isfinite(total) else math.inf

    def clip(self, norm: float) -> float:
        """What the gradient is multiplied by."""
        return min(1.0, self.cfg.train.clip / (norm + 1e-6)) if self.cfg.train.clip else 1.0


def local(cfg: Any, poisoned: frozenset[tuple[int, int]] = frozenset()) -> tuple[Ran, list[list[dict[str, np.ndarray]]]]:
    """Local SGD and DiLoCo; `poisoned` holds (step, worker) whose gradient is not finite. Also the gradients by step, worker and name."""
    model, t, sync = Model(cfg), cfg.train, cfg.plan.sync
    n, out, gradients = model.workers, Ran(), []
    start = model.first()
    w = [start.copy() for _ in range(n)]
    states = [model.rule.state(model.map.size, np, "float64") for _ in range(n)]
    applied, stepped, v = [0] * n, [0] * n, np.zeros_like(start)
    for step in range(t.steps):
        losses, counts, norms = [], [], []
        gradients.append([])
        for r in range(n):
            count = model.labels(step, r)
            loss, g = model.gradient(w[r], step, r, count)
            norm = math.inf if (step, r) in poisoned else model.norm(g)
            gradients[-1].append({name: view.copy() for name, view in model.map.by_name(g).items()})
            if math.isfinite(norm):
                applied[r] += 1
                stepped[r] += count
                segments = model.map.segments()
                model.rule.step(w[r], g, states[r], segments, applied[r], rate(t, step), model.clip(norm))
            losses.append(loss)
            counts.append(count)
            norms.append(norm)
        out.losses.append(sum(losses) / sum(counts))
        out.norms.append(sum(a * b for a, b in zip(counts, norms, strict=True)) / sum(counts))
        if (step + 1) % sync.every and step + 1 < t.steps:
            continue
        mean = sum(a * b for a, b in zip(stepped, w, strict=True)) / sum(stepped)
        delta = start - mean
        v = sync.outer_momentum * v + delta
        start = start - sync.outer_rate * (delta + sync.outer_momentum * v)
        w = [start.copy() for _ in range(n)]
        stepped = [0] * n
    out.weights = {0: model.map.by_name(start)}
    return out, gradients


Codec = Callable[[list[np.ndarray]], np.ndarray]


def compressed(cfg: Any, codec: Callable[[Model], Codec]) -> Ran:
    """Synchronous training whose sum of gradients goes through `codec`: all workers' gradients in, what is applied out."""
    model, t = Model(cfg), cfg.train
    w, out, code = model.first(), Ran(), codec(model)
    state = model.rule.state(model.map.size, np, "float64")
    for step in range(t.steps):
        count = sum(model.labels(step, r) for r in range(model.workers))
        found = [model.gradient(w, step, r, count) for r in range(model.workers)]
        g = code([gradient for _, gradient in found])
        norm = model.norm(g)
        out.losses.append(sum(loss for loss, _ in found) / count)
        out.norms.append(norm)
        out.gradients.append({0: {name: view.copy() for name, view in model.map.by_name(g).items()}})
        model.rule.step(w, g, state, model.map.segments(), step + 1, rate(t, step), model.clip(norm))
    out.weights = {0: model.map.by_name(w)}
    return out
