"""Stages that sleep instead of computing, while every message, reduction and update is real.

Measured steps and bubbles of many stages on two cores then follow the schedule's clock, because a sleeping rank needs no core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from hpcpar.comm.device import synchronize
from hpcpar.config import Emulate
from hpcpar.errors import PlanError
from hpcpar.layer_times import LayerTimes
from hpcpar.nn.context import Microbatch
from hpcpar.run.build import Pipeline
from hpcpar.run.part import Part

SLACK_S = 200e-6  # a sleep ends up to this late
SLICE_S = 5e-3


def sleep_until(end: float, progress: Callable[[], None]) -> None:
    """Sleep until time.perf_counter() is `end`, and let messages move now and then, as a computing rank does.

    The last moment is spent yielding, so that the times are those asked for.
    """
    while (left := end - time.perf_counter() - SLACK_S) > 0:
        time.sleep(min(left, SLICE_S))
        progress()
    while time.perf_counter() < end:
        os.sched_yield()


class Asleep:
    """The times and shapes of a stage without its arithmetic; it stands where an nn.Stage stands."""

    def __init__(self, part: Part, progress: Callable[[], None], f_s: float, i_s: float, w_s: float):
        stage = part.stage
        self.first, self.last, self.map, self.frame = stage.first, stage.last, stage.map, stage.frame
        self._part, self._progress = part, progress
        self._f, self._i, self._w = f_s, i_s, w_s

    def forward(self, x: Any, labels: Any, weights: Any, at: Microbatch, between: Callable[[], None]) -> tuple[Any, list]:
        """Sleep F; the output has the right shape."""
        self._sleep(self._f)
        return (0.0 if self.last else self._array(at)), []

    def backward(self, dy: Any, saved: list, weights: Any, sink: Callable[..., None], at: Microbatch, again: Any) -> Any:
        """Sleep I, then leave a W that sleeps."""
        self._sleep(self._i)
        left = [self._w]  # one W for the stage: its first gradient sleeps, the others are there at once
        for layer in reversed(range(len(self.map.layers))):
            for name in _parts(self.map.gradient_spans[layer]):
                sink(layer, name, lambda held, *views: self._sleep(left.pop() if left else 0.0), None)
        return None if self.first else self._array(at)

    def _array(self, at: Microbatch) -> Any:
        return self._part.xp.zeros((at.samples * at.positions, self.frame.model.width), self._part.dtype)

    def _sleep(self, seconds: float) -> None:
        sleep_until(time.perf_counter() + seconds, self._progress)


class Slowed:
    """A stage whose passes take `factor` times their time: it computes, then sleeps the rest."""

    def __init__(self, part: Part, progress: Callable[[], None], factor: float):
        self._stage, self._part, self._progress, self._more = part.stage, part, progress, factor - 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def forward(self, *arguments: Any) -> tuple[Any, list]:
        """The stage's own, and a sleep."""
        return self._stretched(self._stage.forward, *arguments)

    def backward(self, *arguments: Any) -> Any:
        """The stage's own with its weight gradients, and a sleep."""
        return self._stretched(self._stage.backward, *arguments)

    def _stretched(self, work: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        out = work(*arguments)
        synchronize(self._part.gradients.flat)
        now = time.perf_counter()
        sleep_until(now + self._more * (now - start), self._progress)
        return out


def emulated(pipeline: Pipeline, times: Emulate, samples: int) -> None:
    """Put every part of this rank to sleep: for its share of the given times, or for the times of its layers in a profile.

    `samples` is the size of a microbatch; a profile's times are scaled to it. Raises PlanError for a profile of another model.
    """
    factor = times.slow.get(str(pipeline.world.rank), 1.0)
    if times.computes:
        for part in pipeline.parts.values():
            part.stage = Slowed(part, pipeline.world.progress, factor) if factor > 1.0 else part.stage  # type: ignore[assignment]
        return
    for part in pipeline.parts.values():
        f, i, w = _profiled(part, times.profile, samples) if times.profile else _shared(pipeline, times)
        part.stage = Asleep(part, pipeline.world.progress, f * factor, i * factor, w * factor)  # type: ignore[assignment]


def _shared(pipeline: Pipeline, times: Emulate) -> tuple[float, float, float]:
    """Times of a whole rank's share: a chunk takes its part of them, a copy of a two-copy schedule all."""
    v = pipeline.schedule.chunks
    return times.F / v, times.I / v, times.W / v


def _profiled(part: Part, path: str, samples: int) -> tuple[float, float, float]:
    profile = LayerTimes.read(path)
    by_name = {layer.name: layer for layer in profile.layers}
    missing = [layer.name for layer in part.map.layers if layer.name not in by_name]
    if missing or len(profile.layers) != part.stage.frame.model.layers + 2:
        raise PlanError(
            f"the profile {path} has {len(profile.layers)} layers, model.layers = {part.stage.frame.model.layers} needs "
            f"{part.stage.frame.model.layers + 2}; profile this model"
        )
    mine, scale = [by_name[layer.name] for layer in part.map.layers], samples / profile.samples
    return sum(x.F_s for x in mine) * scale, sum(x.I_s for x in mine) * scale, sum(x.W_s for x in mine) * scale


def _parts(spans: dict[str, Any]) -> list[str]:
    """The names under which a layer's backward hands over its weight gradients."""
    if "tokens.weight" in spans:
        return ["tokens positions"]
    return list(dict.fromkeys(key.rpartition(".")[0] for key in reversed(spans)))
