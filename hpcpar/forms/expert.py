"""Expert parallelism: which experts a rank holds, who exchanges tokens with whom, and how many bytes.

    dp x cp = 4 ranks of a stage, ep = 2, 5 experts

    rank             0         1         2         3
    experts          0 1 2     3 4       0 1 2     3 4
    exchange         +---------+         +---------+        rows go to the rank of their expert within a group, and back
    gradients        +-------------------+                  of experts are summed over the dp cp / ep ranks that hold them
                               +-------------------+

Rows of an expert come from all ranks of its group, so that the sum over the replicas is the sum over the whole batch: nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.layout import cut
from hpcpar.nn.describe import Layer, Parameter, Piece


def held(experts: int, ep: int, index: int) -> range:
    """The experts of rank `index` of an exchange group: consecutive ones, the first ranks one more where they do not divide."""
    piece = cut(experts, ep, index)
    return range(piece.start, piece.stop)


def cut_layer(layer: Layer, ep: int, index: int) -> Layer:
    """The layer with the experts alone that rank `index` of an exchange group holds, cut over tp or not; the layer itself for ep = 1."""
    if ep == 1:
        return layer
    return replace(layer, parameters=tuple(_cut(p, ep, index) if p.of_experts else p for p in layer.parameters))


def _cut(p: Parameter, ep: int, index: int) -> Parameter:
    mine = held(p.shape[0], ep, index)
    before = p.piece or Piece(tuple((0, n) for n in p.shape), (0,), 0, False)
    return replace(p, piece=replace(before, box=((mine.start, mine.stop), *before.box[1:])))


def exchange(ranks: tuple[int, ...], ep: int, rank: int) -> tuple[int, ...]:
    """The ranks, of those along dp and cp of a stage, that `rank` exchanges rows with: `ep` neighbours."""
    first = ranks.index(rank) // ep * ep
    return ranks[first : first + ep]


def replicas(ranks: tuple[int, ...], ep: int, rank: int) -> tuple[int, ...]:
    """The ranks that hold the same experts."""
    return ranks[ranks.index(rank) % ep :: ep]


def moved_bytes(rows: int, width: int, itemsize: int, ep: int, experts: int) -> dict[str, int]:
    """What one rank gives to the exchanges of one layer and microbatch, forward and backward, for `rows` rows of its own.

    `combine` is what comes back to it: what it sends there depends on the rows of others. Rows of its own experts are counted too.
    """
    if ep == 1:
        return {}
    return {"counts": experts * 8, "dispatch": 2 * rows * width * itemsize, "combine": 2 * rows * width * itemsize}


def summed_elements(layers: Iterable[Layer]) -> dict[str, int]:
    """Gradient elements of a stage's layers, as they are cut here, by the axis they are summed along: all replicas, or those of experts."""
    every = {p.name: p for layer in layers for p in layer.parameters}.values()
    return {
        "dp": sum(p.local_size for p in every if not p.dispersed),
        "expert_dp": sum(p.local_size for p in every if p.dispersed),
    }


def check(config: Config) -> None:
    """Raise PlanError where experts cannot be cut so."""
    plan, moe = config.plan, config.model.moe
    if plan.ep == 1:
        return
    if not moe:
        raise PlanError(f"plan.ep = {plan.ep} cuts experts, and the model has none; use plan.ep = 1 or a [model.moe]")
    if plan.replicas:
        raise PlanError(
            f"plan.ep = {plan.ep} with plan.replicas = {list(plan.replicas)}: replicas that take turns have no rows for each other at the "
            "same time; use plan.dp, or ep = 1"
        )
    if plan.dp * plan.cp % plan.ep:
        raise PlanError(
            f"plan.ep = {plan.ep} does not divide dp x cp = {plan.dp} x {plan.cp}, over whose ranks experts are cut; use a divisor of "
            f"{plan.dp * plan.cp}"
        )
    if plan.ep > moe.experts:
        raise PlanError(f"model.moe.experts = {moe.experts} cannot be cut over plan.ep = {plan.ep} ranks; use ep <= {moe.experts}")
    if plan.zero > 1:
        raise PlanError(
            f"plan.zero = {plan.zero} with plan.ep = {plan.ep}: shards of gradients and weights lie with all dp x cp = {plan.dp * plan.cp} "
            f"replicas, of which {plan.dp * plan.cp // plan.ep} hold the same experts; use zero <= 1 or ep = 1"
        )
    if config.train.asleep:
        raise PlanError(f"train.emulate with plan.ep = {plan.ep}: who sleeps sends no rows to experts; use plan.ep = 1")
