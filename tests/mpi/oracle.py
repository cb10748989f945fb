"""The oracle of asynchronous pipelines: one process that keeps every version and applies the papers' update rules, step by step.

    stashing   w_s(n + r) = w_s(n) - update(mean of the round's gradients, each taken at the versions that its minibatch saw)
    vertical   the same with the version of the input stage on all stages
    2bw        w(t + 1) = w(t) - update(grad at w(t - 1))

Versions come from the papers' warm-up (a straight pipeline: max(drain, k - (p - 1 - s))), written without the schedule's code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from proof import Ran, host

from hpcpar.data import Corpus
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import cut_stages, parameters
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import initial
from hpcpar.nn.stage import Stage
from hpcpar.ops.update import square_sum
from hpcpar.optim import OPTIMIZERS, rate

RULES = {"pipedream": "stashing", "pipedream-vertical": "vertical", "pipedream-2bw": "2bw"}


class Oracle:
    """Stages with all their versions."""

    def __init__(self, cfg: Any):
        self.cfg, p, t = cfg, cfg.plan, cfg.train
        self.rule = RULES[p.schedule]
        self.replicas = p.replicas or (1,) * p.pp
        self.m = p.microbatches
        frame = Frame.of(cfg.model, t.seed, np, "float64")
        self.stages = [Stage(layers, frame) for layers in cut_stages(cfg.model, p.stages, p.pp)]
        self.frame, self.corpus = frame, Corpus.of(cfg.data, cfg.model, t.seed)
        self.rules = [OPTIMIZERS[t.optimizer].of(t) for _ in self.stages]
        self.flat: list[dict[int, np.ndarray]] = []
        self.state, self.applied = [], [0] * len(self.stages)
        for s in self.stages:
            flat = np.zeros(s.map.size)
            for name, view in s.map.by_name(flat).items():
                view[...] = initial(s.map.parameters[name], t.seed, dtype="float64")
            self.flat.append({0: flat})
            self.state.append(self.rules[0].state(s.map.size, np, "float64"))
        self.out = Ran()

    def run(self, drains: list[int]) -> Ran:
        """All steps, with the pipeline empty at each drain."""
        first = 0
        for last in drains:
            self.stretch(first, last)
            first = last
        self.out.weights = {
            s: {n: host(w) for n, w in st.map.by_name(self.flat[s][max(self.flat[s])]).items()} for s, st in enumerate(self.stages)
        }
        return self.out

    def stretch(self, first: int, last: int) -> None:
        """Steps first .. last - 1 between two drains."""
        if self.rule == "2bw":
            for step in range(first, last):
                version = max(first, step - 1)
                found = [Gradients(s.map, np, "float64") for s in self.stages]  # ascending microbatches add to one buffer
                for k in range(self.m):
                    self.gradients(step, k, [version] * len(self.stages), found)
                self.update(found, step + 1)
            return
        found: dict[int, Any] = {}
        for k in range(first, last):
            found[k] = self.gradients(k, 0, [self.version(s, k, first, last) for s in range(len(self.stages))])
            if max(self.replicas) == 1:
                self.update(found[k], k + 1)
                continue
            for s, r in enumerate(self.replicas):  # a round of a stage is full, or the last one
                if (k - first + 1) % r == 0 or k + 1 == last:
                    start = first + (k - first) // r * r
                    mine = [found[j][s] for j in range(start, k + 1)]
                    self.update_stage(s, self.sum_of(mine), len(mine), k + 1, max(self.flat[s]))

    def version(self, s: int, k: int, first: int, last: int) -> int:
        """Which version minibatch k uses on stage s: that of the paper's warm-up, in rounds of the replicas."""
        of = 0 if self.rule == "vertical" else s
        r = self.replicas[of]
        ahead = (sum(self.replicas) - 1 - sum(self.replicas[:of])) // r
        return min(last, first + r * max(0, (k - first) // r - ahead))

    def gradients(self, step: int, k: int, versions: list[int], into: list[Gradients] | None = None) -> list[Gradients]:
        """The gradients of one microbatch by stage, with each stage at the version given, added to those of `into`."""
        t, model = self.cfg.train, self.cfg.model
        size = t.batch // self.m
        ids, labels = self.corpus.batch(step * t.batch + k * size, size)
        count = int((self.corpus.batch(step * t.batch, t.batch)[1] >= 0).sum())
        at = Microbatch(self.frame, size, model.context, step, k * size, batch=t.batch)
        weights = [s.map.weights(self.flat[i][v]) for i, (s, v) in enumerate(zip(self.stages, versions, strict=True))]
        x: Any = ids
        saved = []
        for s, w in zip(self.stages, weights, strict=True):
            x, kept = s.forward(x, labels.reshape(-1), w, at)
            saved.append(kept)
        if k == 0:
            self.out.losses.append(0.0)
            self.sum = 0.0
        self.sum += x
        self.out.losses[-1] = self.sum / count
        dy: Any = 1.0 / count
        into = into or [Gradients(s.map, np, "float64") for s in self.stages]
        for s, w, kept, g in zip(reversed(self.stages), reversed(weights), reversed(saved), reversed(into), strict=True):
            g.last = k == self.m - 1
            dy = s.backward(dy, kept, w, g.add, at)
        return into

    @staticmethod
    def sum_of(found: list[Gradients]) -> Gradients:
        """Added in order."""
        total = found[0]
        for g in found[1:]:
            total.flat += g.flat
        return total

    def update(self, found: list[Gradients], version: int) -> None:
        """One update of all stages together: the tied weight summed, the norm over all, clipping, or a skipped step."""
        named = [g.by_name() for g in found]
        if self.cfg.model.tied and len(found) > 1:
            both = named[0]["tokens.weight"] + named[-1]["tokens.weight"]
            named[0]["tokens.weight"][...] = both
            named[-1]["tokens.weight"][...] = both
        total = 0.0
        where = {name: i for i in reversed(range(len(named))) for name in named[i]}
        for name in (n for n, p in parameters(self.cfg.model).items() if p.trained):
            total += square_sum(named[where[name]][name].reshape(-1))
        norm = math.sqrt(total)
        self.out.norms.append(norm)
        self.out.gradients.append({s: {k: host(v) for k, v in by.items()} for s, by in enumerate(named)})
        clip = self.cfg.train.clip
        scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        for s, g in enumerate(found):
            self.update_stage(s, g, 1, version, max(self.flat[s]), scale)

    def update_stage(self, s: int, g: Gradients, n: int, version: int, newest: int, scale: float = 1.0) -> None:
        """Version `version` of stage s from its newest weights."""
        t, stage = self.cfg.train, self.stages[s]
        w = self.flat[s][newest].copy()
        self.applied[s] += 1
        lr = rate(t, version - 1)
        self.rules[s].step(w, g.flat[: stage.map.size], self.state[s], stage.map.segments(), self.applied[s], lr, scale / n)
        for span in stage.map.balanced():
            w[span.start : span.stop] -= self.cfg.model.moe.bias_rate * np.sign(g.flat[span.start : span.stop])
        self.flat[s][version] = w
