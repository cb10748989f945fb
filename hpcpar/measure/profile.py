"""What each layer of a described run costs on this machine, one process alone: seconds of F, I and W, and bytes.

    a round    F: embedding -> blocks.0 -> ... -> head        I: head -> ... -> embedding        W: head -> ... -> embedding

Every layer is an nn.Stage of its own; a round is one microbatch of real data through all of them, so that inputs, gradients and caches
are as a run finds them. The time of a layer is its median over the rounds.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcpar.comm.device import select_device, synchronize
from hpcpar.config import Config, tables
from hpcpar.data import Corpus
from hpcpar.errors import PlanError
from hpcpar.layer_times import Layer, LayerTimes, Machine
from hpcpar.measure.rates import memory_rate
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.stage import Stage
from hpcpar.ops.warm import warm
from hpcpar.optim import OPTIMIZERS
from hpcpar.run import feasible, settings
from hpcpar.run.feed import Feed, on_device
from hpcpar.run.part import Part
from hpcpar.run.stash import owned

WARM_UP = 2  # rounds that are not counted: the first also sees new memory and fresh gradients


def profile(config: Config, rounds: int = 9) -> LayerTimes:
    """Measure the layers of a described run.

    BLAS threads are those of a rank when all ranks of the plan share this machine. Under recompute, I holds the second forward.
    Raises PlanError where the run could not be.
    """
    if rounds < 1:
        raise PlanError(f"--rounds {rounds}: the times are medians over rounds; use at least 1")
    feasible.check_model(config.model)
    feasible.check_plan(config.plan, config.plan.ranks)
    for axis, what in (("cp", "see whole samples"), ("tp", "are whole")):
        size = getattr(config.plan, axis)
        if size > 1:
            raise PlanError(f"plan.{axis} = {size}: a profile is of layers that {what}, in one process; use plan.{axis} = 1")
    size = feasible.microbatch_size(config)
    threads = settings.threads_for(config.run.threads, len(os.sched_getaffinity(0)), config.plan.ranks)
    settings.set_threads(threads)
    settings.keep_memory()
    xp = _array_module(config)
    warm(config.train.precision)
    model = _Layers(config, size, xp)
    for _ in range(WARM_UP):
        model.round()
    seconds = [model.round() for _ in range(rounds)]
    found = []
    for i, part in enumerate(model.parts):
        layer, held = part.stage.layers[0], part.held_bytes()
        F, I, W = (statistics.median(r[kind][i] for r in seconds) for kind in "FIW")
        found.append(
            Layer(
                name=layer.name,
                kind=layer.kind,
                F_s=F,
                I_s=I,
                W_s=W,
                output_bytes=model.output_bytes[i],
                stash_bytes=model.stash_bytes[i],
                parameter_bytes=held["parameters"],
                optimizer_bytes=held["optimizer"],
            )
        )
    return LayerTimes(
        samples=size,
        precision=config.train.precision,
        rounds=rounds,
        machine=Machine(host=platform.node(), device=config.run.device, threads=threads, copy_bytes_per_s=memory_rate(0.2, xp) / 2),
        layers=tuple(found),
        config=tables(config),
    )


class _Layers:
    """Every layer as a stage of its own, with its arrays, and one microbatch for them."""

    def __init__(self, config: Config, size: int, xp: Any):
        train, dtype = config.train, config.train.precision
        self.frame = Frame.of(config.model, train.seed, xp, dtype)
        kind: Any = OPTIMIZERS[train.optimizer]
        rule = kind.of(train)
        self.parts = [
            Part(Stage([layer], self.frame, config.plan.recompute), i, (0,), rule, xp, dtype)
            for i, layer in enumerate(layers(config.model))
        ]
        for part in self.parts:
            part.start(train.seed)
        feed = Feed(Corpus.of(config.data, config.model, train.seed), train.batch, size, 0, config.plan.dp)
        ids, labels = feed.take(0, 0)
        self.ids, self.labels = on_device(ids, xp), on_device(labels, xp)
        self.at = Microbatch(self.frame, size, config.model.context)
        self.scale = 1.0 / (train.batch * config.model.context)
        self.output_bytes = [0] * len(self.parts)
        self.stash_bytes = [0] * len(self.parts)

    def round(self) -> dict[str, list[float]]:
        """One microbatch through all layers: the seconds of F, I and W of each."""
        seconds = {kind: [0.0] * len(self.parts) for kind in "FIW"}
        x: Any = self.ids
        saved: list[Any] = []
        for i, part in enumerate(self.parts):
            (x, s), seconds["F"][i] = self._timed(partial(part.stage.forward, x, self.labels, part.weights(), self.at))
            saved.append(s)
            self.output_bytes[i] = 0 if part.stage.last else x.nbytes
            self.stash_bytes[i] = sum(dict(owned(s)).values())
        dx: Any = self.scale
        held: list[list[Any]] = [[] for _ in self.parts]
        for i, part in reversed(list(enumerate(self.parts))):
            sink = partial(_hold, held[i])
            dx, seconds["I"][i] = self._timed(partial(part.stage.backward, dx, saved.pop(), part.weights(), sink, self.at))
        for i, part in reversed(list(enumerate(self.parts))):
            _, seconds["W"][i] = self._timed(partial(_weights, part, held.pop()))
        return seconds

    def _timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """The result of a call, and the seconds until it is there."""
        synchronize(self.ids)
        start = time.perf_counter()
        out = work()
        synchronize(self.ids)
        return out, time.perf_counter() - start


def _hold(held: list[Any], *item: Any) -> None:
    """The sink of I: what W needs is kept."""
    held.append(item)


def _weights(part: Part, held: list[Any]) -> None:
    """W: added to the gradients of the microbatch before, as all but the first of a step are."""
    for item in held:
        part.gradients.add(*item)


def _array_module(config: Config) -> Any:
    if config.run.device == "cpu":
        return np
    select_device(0)
    import cupy

    return cupy
