"""The schedule of a run as it will be carried out: generated, lowered, checked; and who holds its stages. No MPI."""

from __future__ import annotations

from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.mesh import Mesh
from hpcpar.nn.describe import cut_stages
from hpcpar.run import feasible
from hpcpar.run.streams import is_asynchronous, proven
from hpcpar.schedule.check import check
from hpcpar.schedule.generate import generate
from hpcpar.schedule.lower import lower
from hpcpar.schedule.program import Program, Schedule


def program_of(config: Config) -> Program:
    """The lowered and checked schedule of a step; raises PlanError where the plan cannot be."""
    p = config.plan
    if is_asynchronous(config):
        feasible.check_flushes(config)
        return proven(config)
    if p.replicas:
        raise PlanError(f"plan.replicas = {list(p.replicas)} with {p.schedule}: only pipedream has replicas a stage; use plan.dp")
    schedule = generate(p.schedule, stages=p.pp, microbatches=p.microbatches, chunks=p.chunks, accumulate=p.accumulate)
    feasible.check_copies(config, schedule)
    first, last = schedule.holders(0), schedule.holders(schedule.stages - 1)
    if p.zero and config.model.tied and schedule.stages > 1 and len(first) != len(last):
        raise PlanError(
            f"plan.zero = {p.zero} with {p.schedule}: the tied weight has {len(first)} copies on the first stage and {len(last)} on the "
            "last, so their shards differ; use equally many, model.tied = false, or zero = 0"
        )
    program = lower(schedule, tied=config.model.tied, reduce=(p.dp * p.cp > 1 and p.sync.mode == "bsp") or p.zero > 0)
    check(program)
    return program


def checked(config: Config, ranks: int) -> tuple[Program, int]:
    """The program and the samples of a microbatch of a run on `ranks` ranks; raises PlanError where it cannot be. All that needs no MPI."""
    feasible.check_model(config.model)
    feasible.check_plan(config.plan, ranks)
    feasible.check_sharing(config)
    program = program_of(config)
    cut_stages(config.model, config.plan.stages, program.schedule.stages)
    return program, feasible.microbatch_size(config)


def replicas_of(mesh: Mesh, schedule: Schedule, stage: int, t: int) -> tuple[int, ...]:
    """The MPI ranks that hold piece `t` of a stage: copies in the lists, data-parallel replicas and those that cut its samples."""
    copies = (mesh.group(("dp", "cp"), mesh.rank(pp=h, tp=t)) for h in schedule.holders(stage))
    return tuple(sorted(r for group in copies for r in group))
