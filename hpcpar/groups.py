"""Which ranks take part in a collective, from the description of the run: an event says its axis and stage, not its partners.

axis       ranks that differ along           (hpcpar.run.build makes the same communicators)
world      all
pp         pp and tp; of all ranks that exchange rows of experts, where these are cut
dp         dp and cp, of all ranks that hold the stage
cp, tp     cp; tp
ep         `ep` neighbours among those along dp and cp
expert_dp  those of dp that hold the same experts
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from hpcpar.config import Config, build
from hpcpar.errors import PlanError
from hpcpar.forms import expert
from hpcpar.mesh import Mesh
from hpcpar.schedule import SCHEDULES, generate
from hpcpar.trace.schema import Axis, Operation

ALONG = {Axis.PP: ("pp", "tp"), Axis.DP: ("dp", "cp"), Axis.CP: ("cp",), Axis.TP: ("tp",)}
Partners = Callable[[int, int, int, int], tuple[int, ...] | None]


def groups(description: dict[str, Any], ranks: int) -> Partners:
    """(rank, axis, stage, operation) -> the ranks of the collective, ascending; None where the description does not tell."""
    plan, mesh = _planned(description, ranks)

    @cache
    def of(rank: int, axis: int, stage: int, operation: int) -> tuple[int, ...] | None:
        if axis == Axis.WORLD:
            return tuple(range(ranks))
        if plan is None or mesh is None or axis not in (*ALONG, Axis.EP, Axis.EXPERT_DP):
            return None
        if operation == Operation.SHARED and plan.model.groups < plan.plan.tp:  # some of them, those that hold the same key/value heads
            return None
        ep, replicas = plan.plan.ep, mesh.group(("dp", "cp"), rank)
        if axis == Axis.EP:
            return expert.exchange(replicas, ep, rank)
        if axis == Axis.PP and ep > 1:
            return tuple(sorted(r for other in expert.exchange(replicas, ep, rank) for r in mesh.group(ALONG[Axis.PP], other)))
        if axis in (Axis.DP, Axis.EXPERT_DP):
            return _copies(plan, mesh, rank, stage, ep if axis == Axis.EXPERT_DP else 1)
        return tuple(sorted(mesh.group(ALONG[Axis(axis)], rank)))

    return of


def _planned(description: dict[str, Any], ranks: int) -> tuple[Config | None, Mesh | None]:
    """The configuration and its mesh; None where there is none that fits the ranks."""
    stored = description.get("config")
    try:
        plan = build(stored) if stored else None
        mesh = Mesh.of(plan.plan) if plan else None
    except PlanError:
        return None, None
    return (plan, mesh) if mesh and mesh.ranks == ranks else (None, None)


def _copies(described: Config, mesh: Mesh, rank: int, stage: int, ep: int) -> tuple[int, ...] | None:
    """The ranks that hold the same piece of a stage, and of its experts where these are cut over `ep`; of one copy where stage is -1."""
    plan, at = described.plan, mesh.coordinates(rank)
    if plan.replicas and stage >= 0:
        first = sum(plan.replicas[:stage])
        holders: tuple[int, ...] = tuple(range(first, first + plan.replicas[stage]))
    elif stage < 0 or getattr(SCHEDULES.get(plan.schedule), "copies", 1) == 1:
        holders = (at["pp"],)
    else:
        try:
            holders = _holders(plan.schedule, plan.pp, plan.microbatches, plan.chunks, stage)
        except PlanError:
            return None
    same = (mesh.rank(**{**at, "pp": h}) for h in holders)
    return tuple(sorted(r for other in same for r in expert.replicas(mesh.group(("dp", "cp"), other), ep, other)))


@cache
def _holders(schedule: str, stages: int, microbatches: int, chunks: int, stage: int) -> tuple[int, ...]:
    return tuple(generate(schedule, stages=stages, microbatches=microbatches, chunks=chunks).holders(stage))
