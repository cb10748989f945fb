"""A cut of a model: which layers each stage has, on how many ranks, what each term of its time is, and what `train` is told."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hpcpar.plan.costs import Layers, Level


@dataclass(frozen=True)
class Term:
    """One of the terms whose largest is the time of the cut: seconds a minibatch, of layers first .. last.

    compute     forward and backward of a stage, over its replicas
    reduction   the sum of the gradients over `replicas` components of a level
    message     the activation behind layer `last` to the next stage, and its gradient back
    """

    kind: Literal["compute", "reduction", "message"]
    first: int
    last: int
    seconds: float
    level: int = 0  # 1 is the innermost; 0 needs no link
    replicas: int = 1


@dataclass(frozen=True)
class Stage:
    """Layers first .. last on `replicas` ranks.

    compute_s, reduce_s, send_s   its terms, seconds a minibatch: the largest reduction that it takes part in, the message to the next stage
    slots                         where the replicas stand: rank x of the machine, counted through the levels, innermost fastest
    """

    first: int
    last: int
    replicas: int
    compute_s: float
    reduce_s: float
    send_s: float
    in_flight: int
    held_bytes: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """Stages in order, with every term of the time that was made as small as can be."""

    layers: Layers
    levels: tuple[Level, ...]  # innermost first
    stages: tuple[Stage, ...]
    terms: tuple[Term, ...]

    @property
    def bottleneck(self) -> Term:
        """The largest term."""
        return max(self.terms, key=lambda term: term.seconds)

    @property
    def time_s(self) -> float:
        """Seconds between two minibatches in steady state."""
        return self.bottleneck.seconds

    @property
    def alone_s(self) -> float:
        """Seconds of a minibatch on one worker."""
        return sum(self.layers.compute_s)

    @property
    def blocks(self) -> list[int]:
        """`plan.stages`: transformer blocks a stage; the embedding, layer 0, is in the first and the head in the last."""
        last = len(self.layers) - 1
        return [s.last - s.first + 1 - (s.first == 0) - (s.last == last) for s in self.stages]

    @property
    def replicas(self) -> list[int]:
        """`plan.replicas`: ranks a stage."""
        return [s.replicas for s in self.stages]

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Where each rank of the run stands, ranks numbered stage by stage as `train` does."""
        return tuple(slot for s in self.stages for slot in s.slots)

    def shifts(self, stage: int) -> list[tuple[int, int, float]]:
        """(layer, the stage that it would move to, that stage's compute then) for the layers at both ends of a stage."""
        s, out = self.stages[stage], []
        if s.first < s.last:
            for layer, to in ((s.first, stage - 1), (s.last, stage + 1)):
                if 0 <= to < len(self.stages):
                    other = self.stages[to]
                    out.append((layer, to, other.compute_s + self.layers.compute_s[layer] / other.replicas))
        return out
