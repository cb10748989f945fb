"""Asynchronous pipelines from drain to drain, rank by rank, one action at a time.

    straight, p = 3, stashing:   rank 0   0F0@0 0F1@0 0F2@0 0B0@0 0U1 | 0F3@1 0B1@0 0U2 | ...      prologue | period | ... | drain
                                 rank 1   1F0@0 1F1@0 1B0@0 1U1 | 1F2@1 1B1@0 1U2 | ...
                                 rank 2   2F0@0 2B0@0 2U1 | 2F1@1 2B1@1 2U2 | ...

Microbatches and versions are numbered over the whole run. A version is named by what it includes: version n has the gradients of all
microbatches below n x group. A drain at microbatch x leaves version x / group on all stages; what follows starts from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcpar.errors import PlanError
from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.program import Rule, Schedule


@dataclass(frozen=True)
class Flow:
    """An asynchronous pipeline for microbatches first .. last - 1, both drains.

    Pipeline ranks are numbered stage by stage: the replicas of stage 0 first. Microbatch k runs on replica k mod r of each stage, and a
    version of a stage with r replicas takes a round of r microbatches; the last round takes what is left.
    Raises PlanError for what the rule does not allow.
    """

    name: str
    rule: Rule
    replicas: tuple[int, ...]
    group: int
    first: int
    last: int
    lazy: bool

    def __post_init__(self) -> None:
        p, m = len(self.replicas), self.group
        if self.last <= self.first:
            raise PlanError(f"{self.name} from minibatch {self.first} to {self.last} has nothing to do; give at least one")
        if self.rule == "vertical" and len(set(self.replicas)) > 1:
            raise PlanError(
                f"replicas = {list(self.replicas)} differ: versions of different stages then do not correspond; "
                f"use pipedream, or equal replicas with {self.name}"
            )
        if self.rule == "2bw" and max(self.replicas) > 1:
            raise PlanError(f"{self.name} with replicas = {list(self.replicas)}: only pipedream has replicas a stage; use dp")
        if self.rule == "2bw" and m < p - 1:
            raise PlanError(
                f"{self.name} with microbatches = {m} < stages - 1 = {p - 1} needs a third version; use microbatches >= {p - 1}"
            )
        if self.first % m or self.last % m:
            raise PlanError(f"{self.name} drains at multiples of microbatches = {m} alone, not at {self.first} and {self.last}")

    @property
    def stages(self) -> int:
        """The number of stages, p."""
        return len(self.replicas)

    @property
    def ranks(self) -> int:
        """The number of pipeline ranks."""
        return sum(self.replicas)

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The pipeline rank that runs a microbatch on a stage."""
        return sum(self.replicas[:stage]) + microbatch % self.replicas[stage]

    def place(self, rank: int) -> tuple[int, int]:
        """(stage, replica) of a pipeline rank."""
        for stage, r in enumerate(self.replicas):
            if rank < r:
                return stage, rank
            rank -= r
        raise ValueError(f"no such rank among {self.ranks}")

    def ahead(self, stage: int) -> int:
        """Forwards of one replica before its first backward, less one (PipeDream's warm-up): p - 1 - s in a straight pipeline."""
        return (self.ranks - 1 - sum(self.replicas[:stage])) // self.replicas[stage]

    def version(self, stage: int, microbatch: int) -> int:
        """The version that both passes of a microbatch use on a stage."""
        if self.rule == "2bw":
            return max(self.first // self.group, min(microbatch // self.group - 1, self.last // self.group))
        r = self.replicas[stage]
        of = 0 if self.rule == "vertical" else stage
        return min(self.first + r * max(0, (microbatch - self.first) // r - self.ahead(of)), self.last)

    def made(self, stage: int) -> Iterator[int]:
        """The versions that a stage makes, in order."""
        if self.rule == "2bw":
            yield from range(self.first // self.group + 1, self.last // self.group + 1)
            return
        r = self.replicas[stage]
        for end in range(self.first + r, self.last + r, r):
            yield min(end, self.last)

    def closes(self, stage: int, microbatch: int) -> int | None:
        """The version whose gradients are complete, on this microbatch's rank, after its backward; None if one more is to come."""
        if self.rule == "2bw":
            return microbatch // self.group + 1 if (microbatch + 1) % self.group == 0 else None
        r = self.replicas[stage]
        return min(self.first + r * ((microbatch - self.first) // r + 1), self.last)

    def compute(self, rank: int) -> Iterator[Action]:
        """The compute actions and updates of one rank, made as they are asked for."""
        stage, replica = self.place(rank)
        r = self.replicas[stage]
        own = range(self.first + (replica - self.first) % r, self.last, r)
        ahead, versions = min(self.ahead(stage), len(own)), self.made(stage)
        newest = self.first // self.group
        for n in range(len(own) + ahead):
            version = self.version(stage, own.start + n * r)  # in the drain too: that of a forward that would come next
            while newest < version:
                newest = next(versions)
                yield Action(Kind.U, stage, None, newest)
            if n < len(own):
                yield Action(Kind.F, stage, own[n], version)
            if n >= ahead:
                k = own[n - ahead]
                yield Action(Kind.B, stage, k, self.version(stage, k))
                if not self.lazy and self.closes(stage, k) is not None:
                    newest = next(versions)
                    yield Action(Kind.U, stage, None, newest)
        for version in versions:
            yield Action(Kind.U, stage, None, version)

    def schedule(self) -> Schedule:
        """All lists at once, for proofs and pictures."""
        ranks = tuple(tuple(self.compute(rank)) for rank in range(self.ranks))
        replicas = self.replicas if max(self.replicas) > 1 else ()
        count = self.last - self.first
        return Schedule(self.name, self.stages, count, 1, ranks, False, self.rule, self.group, self.first, replicas)
