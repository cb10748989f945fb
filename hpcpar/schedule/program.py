"""Schedule and Program: the lists of actions of all pipeline ranks, without and with messages.

A Schedule says compute and updates alone; `lower` turns it into a Program, which is what is checked, timed, drawn and run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hpcpar.schedule.action import COMPUTE, Action, Kind

Rule = Literal["flush", "stashing", "vertical", "2bw"]
Lists = tuple[tuple[Action, ...], ...]


@dataclass(frozen=True)
class Schedule:
    """Compute and updates of every pipeline rank.

    stages        stages of the model, over all ranks and chunks; a stage with copies or replicas counts once
    microbatches  those in the lists, numbered first .. first + microbatches - 1
    chunks        v: an action of one chunk takes 1/v of the rank's time for a microbatch
    rule          which version a microbatch uses: one ("flush"), that of its stage ("stashing"), of the input stage ("vertical"), or 2BW's
    group         microbatches a version of an asynchronous schedule: version n includes those below n x group
    first         the first microbatch after a drain; all stages then hold version first / group
    replicas      ranks a stage, where a minibatch has one of them
    paired        a forward directly before a backward of another stage is one block with it: its output leaves at the end of the backward
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    ranks: Lists
    synchronous: bool
    rule: Rule = "flush"
    group: int = 1
    first: int = 0
    replicas: tuple[int, ...] = ()
    paired: bool = False

    @property
    def last(self) -> int:
        """One more than the last microbatch."""
        return self.first + self.microbatches

    def holders(self, stage: int) -> tuple[int, ...]:
        """The pipeline ranks that hold a stage, ascending: several for copies and replicas."""
        return self._holders[stage]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a pipeline rank holds, ascending."""
        return self._stages_of[rank]

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The pipeline rank that forwards a microbatch on a stage; KeyError if none does."""
        return self.placement[stage, microbatch]

    def tied_peer(self, rank: int, stage: int) -> int:
        """The rank with which `rank` exchanges the tied gradient of its first or last stage; itself where it holds both."""
        other = self.holders(self.stages - 1 if stage == 0 else 0)
        return rank if rank in other else other[self.holders(stage).index(rank) % len(other)]

    @cached_property
    def placement(self) -> dict[tuple[int, int], int]:
        """(stage, microbatch) -> pipeline rank, from the forwards in the lists."""
        F = Kind.F
        return {(a[1], a[2]): rank for rank, actions in enumerate(self.ranks) for a in actions if a[0] is F}  # type: ignore[misc]

    @cached_property
    def _stages_of(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted({a[1] for a in actions})) for actions in self.ranks)

    @cached_property
    def _holders(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {s: [] for s in range(self.stages)}
        for rank, stages in enumerate(self._stages_of):
            for s in stages:
                found.setdefault(s, []).append(rank)
        return {s: tuple(ranks) for s, ranks in found.items()}


@dataclass(frozen=True)
class Program:
    """A schedule with its messages and collectives: `ranks` is what each pipeline rank runs, in order.

    tied    the first and the last stage exchange the gradient of a weight that both hold (T)
    reduce  the gradients of every stage are reduced over data-parallel replicas outside the lists (D)
    clip    every update waits for the gradient norm over all stages (N)
    """

    schedule: Schedule
    ranks: Lists
    tied: bool = False
    reduce: bool = False
    clip: bool = False

    def has_reduction(self, stage: int) -> bool:
        """Whether a stage's gradients are reduced: over replicas, or over the copies in the lists."""
        return self.reduce or len(self.schedule.holders(stage)) > 1

    def has_tie(self, stage: int) -> bool:
        """Whether a stage exchanges a tied gradient."""
        return self.tied and self.schedule.stages > 1 and stage in (0, self.schedule.stages - 1)


def compute_and_updates(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The actions without messages and collectives."""
    return tuple(a for a in actions if a.kind in COMPUTE or a.kind is Kind.U)
