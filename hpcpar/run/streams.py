"""An asynchronous schedule as a run needs it: the flow between two drains, and this rank's stream of actions.

A hand-made list (a .csv file) is one flow, from the first step to the last; it has no drain between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.schedule import text
from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.check import check
from hpcpar.schedule.flow import Flow
from hpcpar.schedule.generate import flow, require_common_version, rule_of
from hpcpar.schedule.lower import lower, stream
from hpcpar.schedule.program import Program, Schedule


@dataclass(frozen=True)
class Listed:
    """A hand-made asynchronous schedule in the place of a Flow."""

    of: Schedule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)  # rule, group, first, last, stages

    def schedule(self) -> Schedule:
        """The lists."""
        return self.of

    @property
    def replicas(self) -> tuple[int, ...]:
        """Ranks a stage."""
        return self.of.replicas or (1,) * self.of.stages

    def place(self, rank: int) -> tuple[int, int]:
        """(stage, replica) of a pipeline rank."""
        (stage,) = self.of.stages_of(rank)
        return stage, self.of.holders(stage).index(rank)

    def version(self, stage: int, microbatch: int) -> int:
        """The version that both passes of a microbatch use on a stage."""
        return self._versions[stage, microbatch]

    @cached_property
    def _versions(self) -> dict[tuple[int, int], int]:
        return {(a.stage, a.microbatch): a.version for mine in self.of.ranks for a in mine if a.kind is Kind.F}  # type: ignore[misc]


def is_asynchronous(config: Config) -> bool:
    """Whether the plan's schedule has weight versions."""
    return rule_of(config.plan.schedule) != "flush"


def flow_of(config: Config, first: int, last: int) -> Flow | Listed:
    """The plan's flow for the steps first .. last - 1."""
    p = config.plan
    if p.schedule.endswith(".csv"):
        listed = text.read(p.schedule)
        steps = listed.microbatches // listed.group
        if (listed.first, steps) != (first, last - first) or listed.group != p.microbatches:
            raise PlanError(
                f"{p.schedule} lists {steps} steps of {listed.group} microbatches between drains, not {last - first} of {p.microbatches}; "
                f"use train.steps = {steps} and plan.microbatches = {listed.group}, evaluated and saved at the end alone"
            )
        return Listed(listed)
    return flow(
        p.schedule,
        stages=p.pp,
        group=p.microbatches,
        first=first,
        last=last,
        chunks=p.chunks,
        replicas=p.replicas,
        updates=p.updates,
    )


def streamed(config: Config, at: Flow | Listed, rank: int) -> Iterator[Action]:
    """What a pipeline rank runs; of a flow, made as it is asked for."""
    sums = wants(config)
    return iter(lower(at.of, **sums).ranks[rank]) if isinstance(at, Listed) else stream(at, rank, **sums)


def proven(config: Config) -> Program:
    """The lists of a few rounds with their messages, checked: fill, period and drain are those of the run. Raises PlanError."""
    p, t = config.plan, config.train
    require_common_version(p.schedule, clip=t.clip > 0, tied=config.model.tied)
    if p.accumulate > 1:
        raise PlanError(f"plan.accumulate = {p.accumulate} with {p.schedule}: it has no flush to put off; use plan.accumulate = 1")
    if p.schedule.endswith(".csv"):
        listed = flow_of(config, 0, t.steps)
        assert isinstance(listed, Listed)
        whole = listed.schedule()
        if len(whole.ranks) != (sum(p.replicas) or p.pp) or whole.stages != p.pp:
            raise PlanError(f"{p.schedule} is for {whole.stages} stages on {len(whole.ranks)} ranks; use plan.pp = {whole.stages}")
    else:
        if p.schedule != "pipedream-2bw" and p.microbatches > 1:
            raise PlanError(
                f"plan.microbatches = {p.microbatches} with {p.schedule}: a minibatch is one F and one B; use plan.microbatches = 1"
            )
        probe = flow_of(config, 0, 4)
        assert isinstance(probe, Flow)
        rounds = 4 if probe.rule == "2bw" else 2 * probe.ranks + 2 * max(probe.replicas)
        whole = flow_of(config, 0, rounds).schedule()
    program = lower(whole, **wants(config))
    check(program)
    return program


def wants(config: Config) -> dict[str, bool]:
    """Which sums the updates need. The norm decides about all stages at once only where they have a version in common."""
    p, common = config.plan, rule_of(config.plan.schedule) != "stashing"
    return {"tied": config.model.tied, "reduce": p.dp * p.cp > 1 or p.zero > 0, "clip": common}
