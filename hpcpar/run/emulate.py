"""Stages that sleep instead of computing, while every message, reduction and update is real.

Measured steps and bubbles of many stages on two cores then follow the schedule's clock, because a sleeping rank needs no core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from hpcpar.config import Emulate
from hpcpar.nn.context import Microbatch
from hpcpar.run.build import Pipeline
from hpcpar.run.part import Part

SLACK_S = 200e-6  # a sleep ends up to this late


def sleep_until(end: float) -> None:
    """Sleep until time.perf_counter() is `end`; the last moment is spent yielding, so that the times are those asked for."""
    left = end - time.perf_counter() - SLACK_S
    if left > 0:
        time.sleep(left)
    while time.perf_counter() < end:
        os.sched_yield()


class Asleep:
    """The times and shapes of a stage without its arithmetic; it stands where an nn.Stage stands."""

    def __init__(self, part: Part, f_s: float, i_s: float, w_s: float):
        stage = part.stage
        self.first, self.last, self.map, self.width = stage.first, stage.last, stage.map, stage.frame.model.width
        self._part, self._f, self._i, self._w = part, f_s, i_s, w_s

    def forward(self, x: Any, labels: Any, weights: Any, at: Microbatch, between: Callable[[], None]) -> tuple[Any, list]:
        """Sleep F; the output has the right shape."""
        self._sleep(self._f, between)
        return (0.0 if self.last else self._array(at)), []

    def backward(self, dy: Any, saved: list, weights: Any, sink: Callable[..., None], at: Microbatch, again: Any) -> Any:
        """Sleep I, then leave a W that sleeps."""
        self._sleep(self._i, lambda: None)
        left = [self._w]  # one W for the stage: its first gradient sleeps, the others are there at once
        for layer in reversed(range(len(self.map.layers))):
            for name in _parts(self.map.gradient_spans[layer]):
                sink(layer, name, lambda held, *views: self._sleep(left.pop() if left else 0.0, lambda: None), None)
        return None if self.first else self._array(at)

    def _array(self, at: Microbatch) -> Any:
        return self._part.xp.zeros((at.samples * at.positions, self.width), self._part.dtype)

    @staticmethod
    def _sleep(seconds: float, between: Callable[[], None]) -> None:
        end = time.perf_counter() + seconds
        between()
        sleep_until(end)


def emulated(pipeline: Pipeline, times: Emulate) -> None:
    """Put every part of this rank to sleep for its share of the given times."""
    factor = times.slow.get(str(pipeline.world.rank), 1.0)
    share = factor / pipeline.schedule.chunks
    for part in pipeline.parts.values():
        part.stage = Asleep(part, times.F * share, times.I * share, times.W * share)  # type: ignore[assignment]


def _parts(spans: dict[str, Any]) -> list[str]:
    """The names under which a layer's backward hands over its weight gradients."""
    if "tokens.weight" in spans:
        return ["tokens positions"]
    return list(dict.fromkeys(key.rpartition(".")[0] for key in reversed(spans)))
