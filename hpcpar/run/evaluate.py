"""Held-out loss: forwards alone, through the same stages and messages as training."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from hpcpar.nn.context import Microbatch
from hpcpar.run.feed import on_device
from hpcpar.run.trainer import Trainer


def evaluate(trainer: Trainer, samples: int) -> tuple[float, int]:
    """Mean loss in nats over the unmasked labels of the first `samples` held-out samples, and their number; collective."""
    corpus, pipeline = trainer.feed.corpus, trainer.pipeline
    replicas, start = pipeline.mesh.size("dp"), time.perf_counter_ns()
    samples = min(samples, corpus.held_samples)
    group = trainer.config.model.moe.group if trainer.config.model.moe else 1  # samples that are routed together stay together
    every = np.arange(samples)
    mine = every[every // group % replicas == pipeline.replica]
    most = min(-(-samples // (group * replicas)) * group, samples)
    work = _Held(trainer, mine, most)
    trainer.executor.run(pipeline.forward_actions(work.count), work)
    sums = np.array([math.fsum(trainer.executor.losses.values()) if pipeline.leads else 0.0, 0.0])
    trainer.executor.losses.clear()
    if any(p.stage.last for p in trainer.parts.values()) and pipeline.counts_losses:
        sums[1] = sum(int(np.count_nonzero(trainer.feed.held_out(int(i), 1)[1] >= 0)) for i in mine)
    if trainer.world.size > 1:
        trainer.world.allreduce(sums, "sum", "loss")
    trainer.recorder.compute("evaluate", start)
    return (float(sums[0] / sums[1]) if sums[1] else 0.0), int(sums[1])


class _Held:
    """Held-out samples in microbatches of the training size, filled up with samples whose labels are masked.

    `most` is the number of samples of the replica that has the most: all run equally many microbatches, since they may gather weights.
    """

    def __init__(self, trainer: Trainer, chosen: np.ndarray, most: int):
        self._trainer, self._chosen = trainer, chosen
        self._size = trainer.feed.size
        self.count = -(-most // self._size)

    def _take(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        mine = self._chosen[k * self._size : (k + 1) * self._size]
        rows = [self._trainer.feed.held_out(int(i), 1) for i in (mine if len(mine) else [0])]
        ids, labels = (np.concatenate([r[n] for r in rows]) for n in (0, 1))
        short = self._size - len(rows)
        if short:
            ids = np.concatenate([ids, np.zeros((short, ids.shape[1]), ids.dtype)])
            labels = np.concatenate([labels, np.full(short * ids.shape[1], -1, labels.dtype)])
        labels[len(mine) * ids.shape[1] :] = -1
        return ids, labels

    def microbatch(self, k: int) -> Microbatch:
        t = self._trainer
        return Microbatch(t.frame, self._size, t.feed.positions, t.steps, 0, False)

    def ids(self, k: int) -> Any:
        return on_device(self._take(k)[0], self._trainer.xp)

    def labels(self, k: int) -> Any:
        return on_device(self._take(k)[1], self._trainer.xp)
