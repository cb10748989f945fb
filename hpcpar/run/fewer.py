"""The same run on fewer replicas: what `run.survive = "shrink"` makes of a description when ranks were lost. No MPI.

    batch 12 = dp 3 x 1 microbatch of 4      one is lost      batch 12 = dp 2 x 2 microbatches of 3

The batch stays, and so does the sequence of samples; a microbatch never grows, so that what fitted into the memory still does.
"""

from __future__ import annotations

from msgspec.structs import replace

from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.run import feasible
from hpcpar.run.program import program_of
from hpcpar.run.streams import is_asynchronous

KEY = 'run.survive = "shrink"'


def on(config: Config, ranks: int) -> Config:
    """The description on `ranks` replicas: `accumulate` is the smallest that lets no microbatch grow.

    `microbatches` stays where it divides a rank's share, and is 1 elsewhere. Raises PlanError where the batch does not divide.
    """
    p, batch, moe = config.plan, config.train.batch, config.model.moe
    group = moe.group if moe else 1
    share, most = batch // ranks, feasible.microbatch_size(config)
    sizes = [n for n in range(group, most + 1, group) if share % n == 0]
    if batch % ranks or not sizes:
        what = f"whole groups of {group} samples" if batch % ranks == 0 else "equal parts"
        raise PlanError(
            f"{KEY}: train.batch = {batch} cannot be cut into {what} for {ranks} ranks, one fewer than before or less; "
            f"use a batch that {ranks} x {group} divides, or go on with --resume on another number of ranks"
        )
    parts = share // sizes[-1]
    m = p.microbatches if parts % p.microbatches == 0 else 1
    return replace(config, plan=replace(p, dp=ranks, accumulate=parts // m, microbatches=m))


def check(config: Config) -> None:
    """Raise PlanError, before step 1, where a run that loses a rank could not go on."""
    p, run = config.plan, config.run
    cut = [f"plan.{k} = {n}" for k in ("pp", "tp", "cp", "ep") if (n := getattr(p, k)) > 1] + [
        f"plan.replicas = {list(p.replicas)}"
    ] * bool(p.replicas)
    if cut:
        raise PlanError(
            f'{KEY} with {", ".join(cut)}: a lost rank takes a piece of the model with it; use replicas alone (plan.dp), or "none"'
        )
    if p.sync.mode != "bsp" or is_asynchronous(config):
        what = f'plan.schedule = "{p.schedule}"' if is_asynchronous(config) else f'plan.sync.mode = "{p.sync.mode}"'
        raise PlanError(f'{KEY} with {what}: ranks are at different steps and have states of their own; use mode = "bsp" and "1f1b"')
    for what, here in (
        (f'plan.sync.compress = "{p.sync.compress}"', p.sync.compress != "none"),
        ('plan.sync.progress = "thread"', p.sync.progress == "thread"),
        ("plan.offload", p.offload is not None),
        (f"run.watchdog_s = {run.watchdog_s:g}", run.watchdog_s > 0),
        (f'run.device = "{run.device}"', run.device != "cpu"),
        ("train.emulate.slow, which names ranks by number", bool(config.train.emulate and config.train.emulate.slow)),
    ):
        if here:
            raise PlanError(f"{KEY} with {what}: going on without a rank is not built for it; leave one of the two out")
    if not run.checkpoint_every:
        raise PlanError(
            f"{KEY} with run.checkpoint_every = 0: a lost rank would send the run back to step 1; use run.checkpoint_every >= 1"
        )
    if p.dp > 1:
        feasible.check_sharing(smaller := on(config, p.dp - 1))
        program_of(smaller)
