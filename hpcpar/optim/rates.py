"""Learning rates by step: a linear warm-up, then a half cosine or a constant.

peak            * * .
             *        .
          *             .  .  final_rate x peak
       *
step   0     warmup     steps - 1
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcpar.config import Train


def rate(train: Train, step: int) -> float:
    """The learning rate of a step, counted from 0.

    Step s < warmup has (s + 1) / (warmup + 1) of the peak, step warmup is the first to have all of it.
    """
    if step < train.warmup:
        return train.learning_rate * (step + 1) / (train.warmup + 1)
    return train.learning_rate * RATES[train.schedule](train, step)


def cosine(train: Train, step: int) -> float:
    """The factor after the warm-up: from 1 at step warmup to final_rate at step steps - 1, and from then on."""
    last = train.steps - 1 - train.warmup
    done = min(1.0, (step - train.warmup) / last) if last > 0 else float(step > train.warmup)
    return train.final_rate + (1.0 - train.final_rate) * 0.5 * (1.0 + cos(pi * done))


def constant(train: Train, step: int) -> float:
    """The factor after the warm-up: 1."""
    return 1.0


RATES: dict[str, Callable[[Train, int], float]] = {"cosine": cosine, "constant": constant}
