"""Mixtures of experts: which can be, and under which plans. How they are cut over ranks, and what that refuses: forms/expert.py.

dp, pp, every schedule, accumulate, recompute, zero      as for a dense model: routing is over groups of whole samples
tp, sequence                                             the inner width of every expert is cut; all rows are routed by every rank alike
cp                                                       ranks share the scores of whole groups
local, ssp, asp, compress, offload                       refused
"""

from __future__ import annotations

from hpcpar.config import Config, Model, Moe
from hpcpar.errors import PlanError
from hpcpar.nn.describe import ROUTERS


def check(m: Model, moe: Moe) -> None:
    """Raise PlanError if the mixture of experts is inconsistent."""
    e, k, gate = moe.experts, moe.k, moe.gate
    if k > e:
        raise PlanError(f"model.moe.k = {k} experts a token, and there are model.moe.experts = {e}; use k <= {e}")
    if moe.every > m.layers:
        raise PlanError(
            f"model.moe.every = {moe.every} leaves none of model.layers = {m.layers} blocks with experts; use every <= {m.layers}"
        )
    fixed = {"switch": 1, "gshard": 2, "base": 1}.get(gate, k)
    if k != fixed:
        raise PlanError(f'model.moe.k = {k}, and gate = "{gate}" sends a token to {fixed}; use k = {fixed}, or gate = "topk"')
    if gate == "expert-choice" and not moe.capacity:
        raise PlanError(
            'gate = "expert-choice" takes as many tokens as model.moe.capacity says, and there is none; set capacity = {factor = 1.0}'
        )
    if gate in ("hash", "balanced") and (moe.balance or moe.z_loss or moe.jitter):
        raise PlanError(
            f'gate = "{gate}" has no router, and model.moe.balance = {moe.balance}, z_loss = {moe.z_loss}, jitter = {moe.jitter}; '
            "leave them out"
        )
    if gate != "sigmoid-bias" and (moe.expert_groups > 1 or moe.limit):
        raise PlanError(
            f'model.moe.expert_groups = {moe.expert_groups}, limit = {moe.limit} with gate = "{gate}"; they belong to "sigmoid-bias" alone'
        )
    if e % moe.expert_groups or e // moe.expert_groups < 2 <= moe.expert_groups:
        raise PlanError(
            f"model.moe.experts = {e} cannot be cut into expert_groups = {moe.expert_groups} of 2 or more; use a divisor of {e}"
        )
    if moe.limit > moe.expert_groups or k > (moe.limit or moe.expert_groups) * (e // moe.expert_groups):
        raise PlanError(
            f"model.moe.limit = {moe.limit} of expert_groups = {moe.expert_groups} with {e // moe.expert_groups} experts each cannot give "
            f"k = {k} experts a token; use a limit that can, at most {moe.expert_groups}"
        )


def check_sharing(config: Config) -> None:
    """Raise PlanError if a model with experts meets a plan that cuts its layers, or sums, updates or keeps in ways not built for it."""
    plan, moe, sync = config.plan, config.model.moe, config.plan.sync
    if not moe:
        return
    what = f"model.moe.experts = {moe.experts}"
    if sync.mode != "bsp":
        raise PlanError(
            f'{what} with plan.sync.mode = "{sync.mode}": auxiliary losses and counts are of the whole batch, a replica would step with '
            f'1 / {plan.dp} of it; use mode = "bsp"'
        )
    if sync.compress != "none":
        raise PlanError(
            f'{what} with plan.sync.compress = "{sync.compress}": arrays of all experts of a block and counts of tokens have no codec; use '
            'compress = "none"'
        )
    if plan.offload:
        raise PlanError(
            f"{what} with plan.offload.device_mb = {plan.offload.device_mb:g}: what a block with experts keeps is known by routing alone, "
            "so that no dry iteration plans it; leave the table out"
        )


def scores_bytes(model: Model, samples: int, itemsize: int) -> int:
    """What the ranks that cut samples gather for a block with experts and a microbatch, in the forward alone: scores of all positions."""
    assert model.moe
    return samples * model.context * model.moe.experts * len(ROUTERS.get(model.moe.gate, ("router",))) * itemsize
