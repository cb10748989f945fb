"""What the schedule's clock says about a cut, from the times of a profile."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.config import Config
from hpcpar.layer_times import LayerTimes
from hpcpar.schedule import Times, Timing, clock, generate, lower


def stage_times(times: LayerTimes, blocks: Sequence[int]) -> Times:
    """F, I and W of each stage, s of one microbatch, of a cut with so many transformer blocks a stage (`plan.stages`)."""
    stages, at = [], 0
    for s, count in enumerate(blocks):
        end = len(times.layers) if s == len(blocks) - 1 else at + count + (s == 0)
        stages.append(times.layers[at:end])
        at = end
    return Times(
        F=[sum(layer.F_s for layer in stage) for stage in stages],
        I=[sum(layer.I_s for layer in stage) for stage in stages],
        W=[sum(layer.W_s for layer in stage) for stage in stages],
    )


def step_timing(times: LayerTimes, config: Config, blocks: Sequence[int]) -> Timing:
    """The clock of one step of a synchronous schedule, one stage a rank; messages and updates take no time. Raises PlanError."""
    p = config.plan
    schedule = generate(p.schedule, stages=len(blocks), microbatches=p.microbatches, accumulate=p.accumulate)
    return clock(lower(schedule), stage_times(times, blocks))
