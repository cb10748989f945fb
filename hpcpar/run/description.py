"""The complete description of a run, stored whole in every trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hpcpar.config import Config, tables
from hpcpar.forms.activations import Shape, stage_items
from hpcpar.nn.describe import cut_stages
from hpcpar.run import host

if TYPE_CHECKING:
    from hpcpar.run.train import Session


def description(config: Config, session: Session, hosts: Any, machine: Any, mpi: dict[str, Any]) -> dict[str, Any]:
    """The run as every trace stores it: config, hosts, versions, machine, what a microbatch keeps, mpi."""
    return {
        "config": tables(config),
        "hosts": hosts,
        "versions": host.versions(),
        "machine": {**machine, **session.threads},
        "activations": _activations(config, session),
        "mpi": {**mpi, "direct": session.verdict.direct, "gpu_aware": session.verdict.reason},
        "start_ns": time.time_ns(),
    }


def _activations(config: Config, session: Session) -> list[list[dict[str, int]]]:
    """What one microbatch keeps, {item: bytes}, by stage and place along cp and tp (faster): the stash of the samples.

    Nothing for a model with experts: what their blocks keep is known by the routing alone.
    """
    if config.model.moe:
        return []
    plan = config.plan
    shapes = [Shape.of(config.model, plan, config.train, session.size, t, c) for c in range(plan.cp) for t in range(plan.tp)]
    stages = cut_stages(config.model, plan.stages, session.program.schedule.stages)
    return [[dict(stage_items(layers, shape)) for shape in shapes] for layers in stages]
