"""A slow rank that computes: the arithmetic is that of any other, and the time that it lacks is slept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcpar import config
from hpcpar.run import emulate
from hpcpar.run.output import losses, tokens_per_s


class Stage:
    """A stage that takes a second."""

    map = "its map"

    def __init__(self, clock: list[float]):
        self.clock = clock

    def forward(self, *arguments: Any) -> tuple[Any, ...]:
        self.clock[0] += 2.0
        return arguments

    def backward(self, *arguments: Any) -> tuple[Any, ...]:
        self.clock[0] += 5.0
        return arguments


def pipeline(rank: int, clock: list[float]) -> Any:
    part = SimpleNamespace(stage=Stage(clock), gradients=SimpleNamespace(flat=np.zeros(1)))
    return SimpleNamespace(parts={0: part}, world=SimpleNamespace(rank=rank, progress=lambda: None))


def test_a_slow_rank_computes_and_then_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ends = [10.0], []
    monkeypatch.setattr(emulate.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(emulate, "sleep_until", lambda end, progress: ends.append(end))
    times = config.Emulate(slow={"1": 3.0, "2": 1.0})
    slow = pipeline(1, clock)
    emulate.emulated(slow, times, 4)
    stage = slow.parts[0].stage
    assert stage.forward(1, 2) == (1, 2) and stage.backward(3) == (3,) and stage.map == "its map"
    assert ends == [12.0 + 2 * 2.0, 17.0 + 2 * 5.0]
    for rank in (0, 2):
        fast = pipeline(rank, clock)
        emulate.emulated(fast, times, 4)
        assert type(fast.parts[0].stage) is Stage


def test_who_computes() -> None:
    assert config.Emulate(slow={"1": 2.0}).computes and not config.Emulate().computes
    assert not config.Emulate(slow={"1": 2.0}, F=0.1).computes and not config.Emulate(slow={"1": 2.0}, profile="p").computes
    assert config.Train(emulate=config.Emulate(W=1.0)).asleep
    assert not config.Train(emulate=config.Emulate(slow={"0": 2.0})).asleep and not config.Train().asleep


def test_losses_and_speed_of_workers_with_lines_of_their_own() -> None:
    lines = [{"step": s, "rank": r, "loss": s + r, "tokens": 1 + 2 * r, "seconds": 1.0 + r} for s in (1, 2, 3) for r in (0, 1)]
    assert losses(lines) == [1.75, 2.75, 3.75]
    assert tokens_per_s(lines, 100) == pytest.approx(50 / 1.0 + 50 / 2.0)
    plain = [{"step": s, "loss": float(s), "tokens": 0, "seconds": [9.0, 2.0, 4.0][s - 1]} for s in (1, 2, 3)]
    assert losses(plain) == [1.0, 2.0, 3.0] and tokens_per_s(plain, 30) == pytest.approx(10.0)
    assert tokens_per_s(plain[:1], 18) == pytest.approx(2.0)
