"""Whether a run can be: every refusal that needs no schedule, before anything is computed or written.

Each message carries the numbers, the reason and the remedy.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcpar.config import Config, Model, Plan
from hpcpar.errors import PlanError


def check_model(m: Model) -> None:
    """Raise PlanError if the model is inconsistent."""
    if m.width % m.heads:
        raise PlanError(
            f"model.width = {m.width} is not a multiple of model.heads = {m.heads}; use a width of {m.heads * -(-m.width // m.heads)}"
        )
    if m.heads % m.groups:
        raise PlanError(f"model.heads = {m.heads} is not a multiple of model.kv_heads = {m.groups}; use a divisor of {m.heads}")
    if m.position == "rotary" and m.head_width % 2:
        raise PlanError(f"rotary positions need an even head width, width / heads = {m.head_width}; use another number of heads")


def check_plan(plan: Plan, ranks: int) -> None:
    """Raise PlanError if the plan does not fit `ranks` MPI ranks."""
    for key in ("tp", "cp", "ep"):
        if getattr(plan, key) > 1:
            raise PlanError(f"plan.{key} = {getattr(plan, key)}: this release cuts models along dp and pp alone; use plan.{key} = 1")
    if plan.sequence:
        raise PlanError("plan.sequence = true needs tensor parallelism, and plan.tp = 1; use plan.sequence = false")
    if plan.replicas and (len(plan.replicas) != plan.pp or plan.dp > 1):
        raise PlanError(
            f"plan.replicas = {list(plan.replicas)} needs one entry for each of plan.pp = {plan.pp} stages and plan.dp = 1, not {plan.dp}"
        )
    if plan.ranks != ranks:
        product = f"replicas {list(plan.replicas)}" if plan.replicas else f"dp = {plan.dp} x pp = {plan.pp}"
        raise PlanError(
            f"the plan needs {plan.ranks} ranks ({product} x cp = {plan.cp} x tp = {plan.tp}), the launch has {ranks}; "
            f"use mpirun -n {plan.ranks}, or another plan"
        )


def check_sharing(config: Config) -> None:
    """Raise PlanError if the way in which data-parallel replicas share work and memory cannot be."""
    for check in (check_zero, check_algorithm, check_compress, check_local, check_stale, check_offload):
        check(config)


def check_zero(config: Config) -> None:
    """Sharded optimizer state, gradients and parameters."""
    if config.plan.zero:
        raise PlanError(f"plan.zero = {config.plan.zero}: this release does not shard optimizer state; use plan.zero = 0")


def check_algorithm(config: Config) -> None:
    """The all-reduce of a bucket, and who lets it move."""
    sync = config.plan.sync
    if sync.algorithm != "mpi":
        raise PlanError(f'plan.sync.algorithm = "{sync.algorithm}": this release uses the MPI\'s own alone; use "mpi"')
    if sync.progress != "calls":
        raise PlanError(f'plan.sync.progress = "{sync.progress}": this release has no progress thread; use "calls"')


def check_compress(config: Config) -> None:
    """Compressed gradients."""
    if config.plan.sync.compress != "none":
        raise PlanError(f'plan.sync.compress = "{config.plan.sync.compress}": this release sends gradients whole; use "none"')


def check_local(config: Config) -> None:
    """Local SGD and its relatives."""
    if config.plan.sync.mode == "local":
        raise PlanError('plan.sync.mode = "local": this release synchronises at every step; use "bsp"')


def check_stale(config: Config) -> None:
    """The parameter server."""
    if config.plan.sync.mode in ("ssp", "asp"):
        raise PlanError(f'plan.sync.mode = "{config.plan.sync.mode}": this release synchronises at every step; use "bsp"')


def check_offload(config: Config) -> None:
    """What leaves the device."""
    if config.plan.offload:
        raise PlanError("plan.offload: this release keeps everything on the device; leave the table out")


def microbatch_size(config: Config) -> int:
    """Samples of one microbatch on one rank; raises PlanError if the batch does not divide."""
    p, t = config.plan, config.train
    parts = p.dp * p.accumulate * p.microbatches
    if t.batch % parts:
        up = parts * -(-t.batch // parts)
        raise PlanError(
            f"train.batch = {t.batch} cannot be cut into dp = {p.dp} x accumulate = {p.accumulate} x microbatches = {p.microbatches} "
            f"= {parts} equal parts; use a batch of {max(parts, up - parts)} or {up}"
        )
    return t.batch // parts


def check_folder(folder: Path) -> None:
    """Make the output folder, or raise PlanError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as e:
        raise PlanError(f"--out {folder} cannot be written: {e.strerror}; name a folder that can") from None
