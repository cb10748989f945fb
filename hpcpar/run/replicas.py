"""The optimizer state of replicas that step on their own, into a checkpoint and back.

    weights               one for all: a checkpoint stands behind an average
    adamw.m.0, adamw.m.1, ..., applied.0, applied.1, ...        the inner state and the number of updates of each replica, by parameter
    outer.momentum        the same on all

A replica's state means nothing to another number of replicas: such a checkpoint goes on with the same plan.dp, under any cut into stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.checkpoint import Checkpoint
from hpcpar.checkpoint.boxes import whole
from hpcpar.checkpoint.store import Tensor
from hpcpar.errors import PlanError
from hpcpar.ops.array import host_array

if TYPE_CHECKING:
    from hpcpar.run.trainer import Trainer

APPLIED, OUTER = "applied.", "outer.momentum"


def held(found: Checkpoint) -> int:
    """The number of replicas whose own states a checkpoint holds; 0 where all shared one."""
    return sum(k.startswith(APPLIED) for k in found.kinds())


def keeps_apart(trainer: Trainer, found: Checkpoint) -> bool:
    """Whether a checkpoint holds a state of each replica; raises PlanError where this run's replicas are not those."""
    n, dp = held(found), trainer.config.plan.dp
    if n and (trainer.shares_state or n != dp):
        now = f'plan.sync.mode = "{trainer.config.plan.sync.mode}" with plan.dp = {dp}'
        raise PlanError(
            f"{found.path} holds an optimizer state for each of {n} replicas that stepped on their own, {now} has no place for them; "
            f'resume with plan.sync.mode = "local" and plan.dp = {n}'
        )
    return n > 0


def own_tensors(trainer: Trainer) -> Iterator[Tensor]:
    """The state of this rank's part of its replica."""
    p, rule = trainer.pipeline, trainer.config.train.optimizer
    for part in trainer.parts.values():
        for name, parameter in part.counted(p.rank).items():
            for kind, views in part.state_by_name().items():
                yield f"{rule}.{kind}.{p.replica}", name, parameter.shape, parameter.slices, host_array(views[name])
            if p.leads:
                yield f"{APPLIED}{p.replica}", name, (1,), whole((1,)), np.array([part.applied], np.int64)


def restore_own(trainer: Trainer, found: Checkpoint) -> None:
    """Read this replica's state, if the checkpoint holds one of each."""
    if not held(found):
        return
    p, rule = trainer.pipeline, trainer.config.train.optimizer
    for part in trainer.parts.values():
        for kind, views in part.state_by_name().items():
            for name, view in views.items():
                part.put(view, found.read(f"{rule}.{kind}.{p.replica}", name, part.map.parameters[name].slices))
        counts = {int(found.read(f"{APPLIED}{p.replica}", name)[0]) for name in part.map.names}
        if len(counts) > 1:
            raise PlanError(
                f"{found.path}: the parameters of stage {part.index} had {sorted(counts)} updates; resume with the plan that made it"
            )
        part.applied = counts.pop() if counts else 0


def outer_tensors(trainer: Trainer, momenta: Mapping[int, Any]) -> Iterator[Tensor]:
    """The outer momentum of this rank's parts, by stage: each replica writes its turn."""
    p = trainer.pipeline
    for s, v in momenta.items():
        if v is not None:
            views = trainer.parts[s].map.by_name(v)
            for i, (name, parameter) in enumerate(trainer.parts[s].counted(p.rank).items()):
                if i % trainer.config.plan.dp == p.replica:
                    yield OUTER, name, parameter.shape, parameter.slices, host_array(views[name])


def restore_outer(trainer: Trainer, momenta: Mapping[int, Any], found: Checkpoint) -> None:
    """Read the outer momentum; zero, as at the start, where the run before had none."""
    for s, v in momenta.items():
        if v is not None and found.names(OUTER):
            for name, view in trainer.parts[s].map.by_name(v).items():
                trainer.parts[s].put(view, found.read(OUTER, name, trainer.parts[s].map.parameters[name].slices))
