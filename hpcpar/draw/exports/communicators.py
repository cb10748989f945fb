"""Who took part in a collective, from the mesh of the run's plan, as hpcpar/run/build.py makes the communicators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from hpcpar.errors import PlanError
from hpcpar.forms import expert
from hpcpar.mesh import Mesh
from hpcpar.schedule import SCHEDULES
from hpcpar.trace.schema import Axis, Operation

ALONG = {Axis.PP: ("pp", "tp"), Axis.DP: ("dp", "cp"), Axis.CP: ("cp",), Axis.TP: ("tp",)}
PARTS = (Operation.SHARED,)  # of some ranks of an axis alone


def members(description: Mapping[str, Any], ranks: int) -> Callable[[int, int, int], tuple[int, ...] | None]:
    """A function of (axis, operation, rank): the ranks of its communicator, or None where the description does not tell."""
    plan = (description.get("config") or {}).get("plan") or {}
    try:
        mesh = Mesh.of(SimpleNamespace(**{**plan, "order": tuple(plan["order"])}))  # type: ignore[arg-type]
    except (KeyError, AttributeError, PlanError):
        mesh = None
    if mesh is not None and mesh.ranks != ranks:
        mesh = None
    family = SCHEDULES.get(plan.get("schedule", ""))
    copies = getattr(family, "copies", 1)

    def of(axis: int, operation: int, rank: int) -> tuple[int, ...] | None:
        if axis == Axis.WORLD:
            return tuple(range(ranks))
        uneven = axis in (Axis.DP, Axis.EXPERT_DP) and (plan.get("replicas") or family is None or copies > 1)
        if mesh is None or axis not in (*ALONG, Axis.EP, Axis.EXPERT_DP) or operation in PARTS or uneven:
            return None
        ep, replicas = plan.get("ep", 1), mesh.group(("dp", "cp"), rank)
        if axis == Axis.EXPERT_DP:
            return tuple(sorted(expert.replicas(replicas, ep, rank)))
        exchange = tuple(sorted(expert.exchange(replicas, ep, rank)))
        if axis == Axis.EP:
            return exchange
        if axis == Axis.PP and ep > 1:  # the norm: every piece of the experts once
            return tuple(sorted(r for other in exchange for r in mesh.group(ALONG[Axis.PP], other)))
        return tuple(sorted(mesh.group(ALONG[Axis(axis)], rank)))

    return of
