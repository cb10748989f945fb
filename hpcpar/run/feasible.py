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
    if plan.zero:
        raise PlanError(f"plan.zero = {plan.zero}: this release does not shard optimizer state; use plan.zero = 0")
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
