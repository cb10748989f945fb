"""[train]: the optimisation, and its emulation."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from hpcpar.config.description import Count, Description, Fraction, Positive


class Emulate(Description, frozen=True):
    """Seconds of a whole rank's share of one microbatch, slept instead of computed; `slow` holds factors by rank.

    With `slow` alone, ranks compute, and a slow one then sleeps until it has taken its factor of the time.
    """

    F: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    I: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    W: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    slow: dict[str, float] = msgspec.field(default_factory=dict)
    profile: str = ""  # a profile file: times by layer instead of F, I and W

    @property
    def computes(self) -> bool:
        """Whether the arithmetic is real."""
        return bool(self.slow) and not (self.F or self.I or self.W or self.profile)


class Train(Description, frozen=True):
    """The optimisation."""

    steps: Count = 200
    batch: Positive = 32  # samples of one update, over all ranks
    optimizer: Literal["sgd", "adamw"] = "adamw"
    learning_rate: Annotated[float, msgspec.Meta(ge=0)] = 3e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: Count = 20  # steps
    final_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1  # of learning_rate, at the end of the cosine
    momentum: Fraction = 0.9  # SGD
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: Annotated[float, msgspec.Meta(gt=0)] = 1e-8
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.1
    clip: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # 0 = no clipping
    precision: Literal["float32", "float64"] = "float32"
    seed: Count = 1
    nonfinite: Literal["skip", "stop"] = "skip"  # what a gradient norm that is not finite does, besides that its update is skipped
    start: str = ""  # a checkpoint, or a run's folder, whose weights are the first ones; none = from the seed
    check_replicas: Count = 0  # steps between checks that what should be equal on several ranks is; 0 = never
    eval_every: Count = 0  # 0 = at the end only
    eval_samples: Positive = 256
    emulate: Emulate | None = None

    @property
    def asleep(self) -> bool:
        """Whether ranks sleep instead of computing: losses are then none, and no arithmetic is measured."""
        return self.emulate is not None and not self.emulate.computes
