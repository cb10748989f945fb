"""An asynchronous schedule as a run needs it: the flow between two drains, and this rank's stream of actions."""

from __future__ import annotations

from collections.abc import Iterator

from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.schedule.action import Action
from hpcpar.schedule.check import check
from hpcpar.schedule.family import Asynchronous
from hpcpar.schedule.flow import Flow
from hpcpar.schedule.generate import SCHEDULES, flow, require_common_version
from hpcpar.schedule.lower import lower, stream
from hpcpar.schedule.program import Program


def is_asynchronous(config: Config) -> bool:
    """Whether the plan's schedule has weight versions."""
    return isinstance(SCHEDULES.get(config.plan.schedule), Asynchronous)


def flow_of(config: Config, first: int, last: int) -> Flow:
    """The plan's flow for the steps first .. last - 1."""
    p = config.plan
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


def streamed(config: Config, flow: Flow, rank: int) -> Iterator[Action]:
    """What a pipeline rank runs, made as it is asked for."""
    return stream(flow, rank, **_wants(config, flow))


def proven(config: Config) -> Program:
    """The lists of a few rounds with their messages, checked: fill, period and drain are those of the run. Raises PlanError."""
    p, t = config.plan, config.train
    require_common_version(p.schedule, clip=t.clip > 0, tied=config.model.tied)
    if p.accumulate > 1:
        raise PlanError(f"plan.accumulate = {p.accumulate} with {p.schedule}: it has no flush to put off; use plan.accumulate = 1")
    if p.schedule != "pipedream-2bw" and p.microbatches > 1:
        raise PlanError(
            f"plan.microbatches = {p.microbatches} with {p.schedule}: a minibatch is one F and one B; use plan.microbatches = 1"
        )
    probe = flow_of(config, 0, 4)
    whole = flow_of(config, 0, 4 if probe.rule == "2bw" else 2 * probe.ranks + 2 * max(probe.replicas))
    program = lower(whole.schedule(), **_wants(config, whole))
    check(program)
    return program


def _wants(config: Config, flow: Flow) -> dict[str, bool]:
    """Which sums the updates need. The norm decides about all stages at once only where they have a version in common."""
    return {"tied": config.model.tied, "reduce": config.plan.dp > 1, "clip": flow.rule != "stashing"}
