"""Whether a run can be: every refusal that needs no schedule, before anything is computed or written.

Each message carries the numbers, the reason and the remedy.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcpar.config import Config, Model, Plan
from hpcpar.errors import PlanError
from hpcpar.forms import context, expert, mixture, tensor, ways
from hpcpar.run.streams import is_asynchronous
from hpcpar.schedule.generate import rule_of
from hpcpar.schedule.program import Schedule


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
    if m.moe:
        mixture.check(m, m.moe)


def check_plan(plan: Plan, ranks: int) -> None:
    """Raise PlanError if the plan does not fit `ranks` MPI ranks."""
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
    """Raise PlanError if the way in which ranks share layers, samples, work and memory cannot be."""
    mixture.check_sharing(config)
    expert.check(config)
    ways.check(config)
    for check in (check_tensor, check_context, check_zero, check_algorithm, check_compress, check_local, check_stale, check_offload):
        check(config)


def check_context(config: Config) -> None:
    """Samples cut over ranks."""
    m, p = config.model, config.plan
    if p.cp > 1:
        named = "model.heads" if p.tp == 1 else f"model.heads / {p.tp} (plan.tp)"
        context.check(p.context, m.context, tensor.fewest_heads(m, p.tp), p.cp, named)
        if config.train.emulate:
            raise PlanError(f"train.emulate with plan.cp = {p.cp}: who sleeps exchanges no keys and values; use plan.cp = 1")


def check_tensor(config: Config) -> None:
    """Layers cut over ranks, and what is equal on several of them."""
    m, p = config.model, config.plan
    fewest = min(context.length(context.runs(p.context, m.context, p.cp, r)) for r in range(p.cp)) if p.cp > 1 else m.context
    tensor.check(config, microbatch_size(config) * fewest)
    if is_asynchronous(config) and config.train.check_replicas:
        raise PlanError(
            f"train.check_replicas = {config.train.check_replicas} with {config.plan.schedule}: stages are at different versions between "
            "drains; use train.check_replicas = 0"
        )


def check_zero(config: Config) -> None:
    """Sharded optimizer state, gradients and parameters."""
    plan, sync = config.plan, config.plan.sync
    if not plan.zero:
        return
    where, rule = f"plan.zero = {plan.zero}", rule_of(plan.schedule)
    if sync.mode != "bsp":
        raise PlanError(f'{where} with plan.sync.mode = "{sync.mode}": shards are updated by all replicas together; use "bsp" or zero = 0')
    if sync.compress != "none":
        raise PlanError(
            f'{where} with plan.sync.compress = "{sync.compress}": shards are sums of whole gradients; use compress = "none" or zero = 0'
        )
    if plan.offload:
        raise PlanError(f"{where} with plan.offload: a shard that also leaves the device is not built; use one of the two")
    if plan.replicas or rule not in ("flush", "2bw"):
        raise PlanError(
            f"{where} with {plan.schedule}: replicas of a stage update after every minibatch and would gather the weights each time; "
            "use a synchronous schedule, pipedream-2bw, or zero = 0"
        )
    if plan.zero > 1 and (plan.pp > 1 or rule != "flush"):
        k = plan.accumulate * plan.microbatches
        raise PlanError(
            f"{where} with {plan.schedule} over plan.pp = {plan.pp} stages: gradients would be reduce-scattered at each of {k} "
            "microbatches while others are in flight; use zero = 1, or pp = 1 with a synchronous schedule"
        )
    if plan.zero > 1 and plan.tp > 1 and (plan.sequence or config.model.groups < plan.tp):
        why = "plan.sequence = true" if plan.sequence else f"model.kv_heads = {config.model.groups} for plan.tp = {plan.tp}"
        raise PlanError(
            f"{where} with {why}: gradients that tp ranks make together would be summed after each microbatch's shards left; use zero = 1"
        )
    if plan.zero == 3 and config.train.emulate:
        raise PlanError(f"{where} with train.emulate: a stage that sleeps reads no weights, so none would be gathered; use zero <= 2")


def check_algorithm(config: Config) -> None:
    """The all-reduce of a bucket, and who lets it move."""
    sync, named = config.plan.sync, ("auto", "mpi")
    if sync.algorithm not in named and config.plan.zero:
        raise PlanError(
            f'plan.sync.algorithm = "{sync.algorithm}" with plan.zero = {config.plan.zero}: shards are reduce-scattered and gathered by '
            'the MPI\'s own; use "auto" or zero = 0'
        )
    if sync.algorithm not in named and sync.mode in ("ssp", "asp"):
        raise PlanError(
            f'plan.sync.algorithm = "{sync.algorithm}" with plan.sync.mode = "{sync.mode}": a parameter server has no all-reduce; '
            'use "auto"'
        )
    if sync.progress == "thread" and config.run.device == "cuda":
        raise PlanError(
            'plan.sync.progress = "thread" with run.device = "cuda": device copies belong to the stream of the thread that computes; '
            'use "calls"'
        )


def check_compress(config: Config) -> None:
    """Compressed gradients: a bucket's own way to its sum."""
    p, sync = config.plan, config.plan.sync
    if sync.compress == "none":
        return
    what = f'plan.sync.compress = "{sync.compress}"'
    if sync.mode != "bsp":
        raise PlanError(
            f'{what} compresses the sum of gradients, and plan.sync.mode = "{sync.mode}" sums none; use mode = "bsp" or compress = "none"'
        )
    if p.zero:
        raise PlanError(
            f'{what} sums gradients on every rank, and plan.zero = {p.zero} shards them; use plan.zero = 0 or compress = "none"'
        )
    if p.dp * p.cp == 1:
        raise PlanError(f'{what} needs gradients that are summed, and plan.dp = 1 has one replica; use plan.dp >= 2 or compress = "none"')
    if sync.compress != "float16" and p.tp > 1:
        raise PlanError(
            f"{what} with plan.tp = {p.tp}: what is left out of a sum depends on the pieces beside it, so that parameters which all {p.tp} "
            'ranks hold would drift apart; use plan.tp = 1 or "float16"'
        )
    if sync.algorithm not in ("auto", "mpi"):
        raise PlanError(f'{what} sends messages of its own, not those of plan.sync.algorithm = "{sync.algorithm}"; use "auto"')


def check_local(config: Config) -> None:
    """Local SGD and its relatives: replicas have one model at an average alone."""
    p, sync = config.plan, config.plan.sync
    if sync.mode != "local":
        return
    if p.dp == 1:
        raise PlanError('plan.sync.mode = "local" averages replicas, and plan.dp = 1 has one; use plan.dp >= 2 or mode = "bsp"')
    if p.cp > 1:
        raise PlanError(
            f'plan.sync.mode = "local": a replica is one rank of each stage and layer, and plan.cp = {p.cp} ranks would have to sum their '
            'gradients at every step; use plan.cp = 1 or mode = "bsp"'
        )
    if p.zero:
        raise PlanError(
            f'plan.sync.mode = "local": each replica has an optimizer state of its own, and plan.zero = {p.zero} would cut one over all; '
            'use plan.zero = 0 or mode = "bsp"'
        )
    if sync.algorithm not in ("auto", "mpi"):
        raise PlanError(f'plan.sync.mode = "local" averages with the MPI\'s own algorithm; use "auto", not "{sync.algorithm}"')
    for key, n in (("train.eval_every", config.train.eval_every), ("run.checkpoint_every", config.run.checkpoint_every)):
        if n % sync.every:
            near = " or ".join(str(k * sync.every) for k in (n // sync.every, n // sync.every + 1) if k)
            raise PlanError(
                f"{key} = {n} is no multiple of plan.sync.every = {sync.every}: between averages there is no one model; use {key} = {near}"
            )


def check_flushes(config: Config) -> None:
    """Raise PlanError where a schedule without flushes cannot do what the plan says of its replicas."""
    sync, name, ep = config.plan.sync, config.plan.schedule, config.plan.ep
    if ep > 1:
        raise PlanError(
            f"plan.ep = {ep} with {name}: replicas that exchange rows must be at the same microbatch and version, which a flush at every "
            'step sees to; use schedule = "1f1b" or ep = 1'
        )
    if sync.mode == "local" or sync.compress != "none":
        what = f'compress = "{sync.compress}"' if sync.compress != "none" else 'mode = "local"'
        raise PlanError(f'plan.sync.{what} needs a schedule with a flush at every step, and {name} has none; use schedule = "1f1b"')


def check_copies(config: Config, schedule: Schedule) -> None:
    """Raise PlanError where replicas that step on their own would have to sum the gradients of two copies of a stage."""
    copies = max(len(schedule.holders(s)) for s in range(schedule.stages))
    if config.plan.sync.mode == "local" and copies > 1:
        raise PlanError(
            f'plan.sync.mode = "local": {schedule.name} has {copies} copies of a stage, whose gradients are summed at every step; '
            'use schedule = "1f1b" or mode = "bsp"'
        )


def check_stale(config: Config) -> None:
    """The parameter server."""
    p, sync = config.plan, config.plan.sync
    if sync.staleness and sync.mode != "ssp":
        raise PlanError(f'plan.sync.staleness = {sync.staleness} with mode = "{sync.mode}", which has no bound; use mode = "ssp", or 0')
    if sync.mode not in ("ssp", "asp"):
        return
    mode = f'plan.sync.mode = "{sync.mode}"'
    if p.pp > 1 or p.schedule.endswith(".csv") or rule_of(p.schedule) != "flush" or p.replicas:
        stages = f'plan.pp = {p.pp}, plan.schedule = "{p.schedule}"'
        raise PlanError(f'{mode} with {stages}: every worker holds the whole model; use plan.pp = 1 and "1f1b", or mode = "bsp"')
    if p.tp * p.cp > 1:
        raise PlanError(
            f'{mode} with plan.tp = {p.tp}, plan.cp = {p.cp}: every worker holds whole layers and samples; use 1 and 1, or mode = "bsp"'
        )
    if p.zero:
        raise PlanError(f"{mode} with plan.zero = {p.zero}: the optimizer state lies with the owners already; use plan.zero = 0")
    if p.offload:
        raise PlanError(f"{mode} with plan.offload: the optimizer state lies in host memory already; leave the table out")
    for key, plain in (("compress", "none"), ("progress", "calls")):
        if (found := getattr(sync, key)) != plain:
            raise PlanError(f'{mode} with plan.sync.{key} = "{found}": it has no sum over replicas; use "{plain}", or mode = "bsp"')


def check_offload(config: Config) -> None:
    """What leaves the device."""
    plan = config.plan
    if plan.offload is None:
        return
    if plan.zero:
        raise PlanError(
            f"plan.offload with plan.zero = {plan.zero}: what a rank keeps is cut in one way alone; use plan.zero = 0 or no offload"
        )
    if plan.tp * plan.cp > 1:
        raise PlanError(
            f"plan.offload with plan.tp = {plan.tp}, plan.cp = {plan.cp}: the dry iteration plans the arrays of whole layers and samples; "
            "use 1 and 1, or no offload"
        )
    if plan.sync.mode != "bsp":
        raise PlanError(f'plan.offload with plan.sync.mode = "{plan.sync.mode}", which reads all weights at once; use "bsp" or no offload')
    if config.train.emulate:
        raise PlanError("plan.offload with train.emulate: a stage that sleeps saves nothing to move; leave one of the two out")


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
    size, moe = t.batch // parts, config.model.moe
    if moe and size % moe.group:
        raise PlanError(
            f"a microbatch of {size} samples does not hold whole groups of model.moe.group = {moe.group}, over which tokens are routed; "
            f"use a group that divides {size}, or fewer microbatches"
        )
    return size


def check_folder(folder: Path) -> None:
    """Make the output folder, or raise PlanError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as e:
        raise PlanError(f"--out {folder} cannot be written: {e.strerror}; name a folder that can") from None
