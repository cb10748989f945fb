"""Who meets whom where experts are cut over the replicas of a stage: for rows, gradients and norms. No MPI.

    dp x cp = 4, ep = 2, two stages      stage 0   ranks 0 1 2 3        stage 1   ranks 4 5 6 7

    rows          0 1 | 2 3 | 4 5 | 6 7         a rank's own stages, in the order of its actions: all of a group run the same list
    gradients     0 2 | 1 3 | 4 6 | 5 7         of experts; copies of a stage (dualpipe, chimera) join where the place is the same
    norm          0 1 4 5 | 2 3 6 7             every parameter once

The ranks that exchange rows have one place in the pipeline and differ in their samples alone. Whoever waits for rows waits for ranks that
are at the same action of the same list, so that no order of waits comes about that the schedule, which is free of deadlocks, does not have.
"""

from __future__ import annotations

from hpcpar.config import Plan
from hpcpar.forms import expert
from hpcpar.mesh import Mesh
from hpcpar.schedule.program import Schedule

Ranks = tuple[int, ...]
ALONG = ("dp", "cp")


def place_of(mesh: Mesh, ep: int, rank: int) -> tuple[int, int]:
    """Which piece of the experts a rank holds, and of how many."""
    return mesh.group(ALONG, rank).index(rank) % ep, ep


def exchange_of(mesh: Mesh, ep: int, rank: int) -> Ranks:
    """The ranks with which a rank exchanges rows, in the order of their experts."""
    return expert.exchange(mesh.group(ALONG, rank), ep, rank)


def same_experts(mesh: Mesh, ep: int, rank: int) -> Ranks:
    """The ranks along dp and cp that hold the same experts of a stage."""
    return expert.replicas(mesh.group(ALONG, rank), ep, rank)


def holders_of(mesh: Mesh, schedule: Schedule, stage: int, ep: int, rank: int) -> Ranks:
    """The ranks that hold the experts of a stage which `rank`, of the same place along tp, does: those of every copy of the stage."""
    at = mesh.coordinates(rank)
    copies = (same_experts(mesh, ep, mesh.rank(**{**at, "pp": h})) for h in schedule.holders(stage))
    return tuple(sorted(r for some in copies for r in some))


def norm_of(mesh: Mesh, ep: int, rank: int) -> Ranks:
    """The ranks that together hold every parameter of the model."""
    return tuple(sorted(r for other in exchange_of(mesh, ep, rank) for r in mesh.group(("pp", "tp"), other)))


def groups(mesh: Mesh, schedule: Schedule, plan: Plan) -> dict[str, set[Ranks]]:
    """The groups of all ranks, by axis."""
    ep, everyone = plan.ep, range(mesh.ranks)
    if ep == 1:
        return {}
    return {
        "ep": {exchange_of(mesh, ep, r) for r in everyone},
        "expert_dp": {holders_of(mesh, schedule, s, ep, r) for r in everyone for s in schedule.stages_of(mesh.coordinates(r)["pp"])},
        "pp": {norm_of(mesh, ep, r) for r in everyone},
    }
