"""The run that trains a partition: the description that was profiled, with another plan."""

from __future__ import annotations

from msgspec.structs import replace

from hpcpar.config import Config, build
from hpcpar.errors import PlanError
from hpcpar.layer_times import LayerTimes
from hpcpar.plan.cut import Partition
from hpcpar.schedule import generate, require_common_version


def described(times: LayerTimes, found: Partition) -> Config:
    """The complete description that `train` takes, with microbatches as they were profiled.

    Without replicas the schedule and the number of microbatches are those of the profile; replicas need pipedream, in which a
    microbatch is a minibatch with an update of its own. Raises PlanError where `train` would refuse the plan.
    """
    config = build(times.config)
    plan = replace(config.plan, dp=1, pp=len(found.stages), chunks=1, stages=tuple(found.blocks), replicas=())
    if max(found.replicas) == 1:
        schedule = generate(plan.schedule, stages=plan.pp, microbatches=plan.microbatches, accumulate=plan.accumulate)
        if schedule.stages != plan.pp or any(len(schedule.holders(s)) > 1 for s in range(plan.pp)):
            raise PlanError(
                f"plan.schedule = {plan.schedule} holds more than one stage a rank, the partition has {plan.pp} stages on {plan.pp} ranks; "
                "profile with --set plan.schedule=1f1b"
            )
        return replace(config, plan=plan, train=replace(config.train, batch=times.samples * plan.microbatches * plan.accumulate))
    plan = replace(plan, schedule="pipedream", microbatches=1, accumulate=1, replicas=tuple(found.replicas))
    require_common_version(plan.schedule, clip=config.train.clip > 0, tied=config.model.tied)
    return replace(config, plan=plan, train=replace(config.train, batch=times.samples))
