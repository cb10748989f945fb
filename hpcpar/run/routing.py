"""What the mixtures of experts of a step did: auxiliary losses of all ranks, and metrics of this rank's share in its trace.

    moe.3.tokens.0     rows that expert 0 of block 3 computed for this rank's samples
    moe.3.wanted.0     assignments to expert 0 before the drop; only where tokens choose and a capacity may drop
    moe.3.dropped      wanted assignments of them that found no place; tokens without an expert, where experts choose
    moe.3.unrouted     tokens without any expert
    moe.3.routed       tokens
    moe.3.entropy      nats a token, the mean of the routing's entropy
    moe.3.balance      this rank's share of the step's auxiliary loss, coefficient included; moe.3.z of its z-loss
    moe.3.causal       0 for a gate that looks at later tokens, 1 else

All but entropy and causal add up over ranks. Ranks that cut a layer's tensors route the same tokens: the first of them records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.nn.describe import has_experts

NOT_CAUSAL = ("expert-choice", "base")

if TYPE_CHECKING:
    from hpcpar.run.trainer import Trainer


def settle(trainer: Trainer, first: int, last: int) -> list[float]:
    """The auxiliary loss of each of the steps first .. last - 1 (from 0), of all ranks, and this rank's metrics of them; collective."""
    model = trainer.config.model
    blocks = [i for i in range(model.layers) if has_experts(model, i)]
    if not blocks or first == last:
        return [0.0] * (last - first)
    shares = np.zeros((last - first, len(blocks)))
    for step in range(first, last):
        for j, i in enumerate(blocks):
            found = trainer.frame.tally.take(step, f"blocks.{i}.moe")
            if found and trainer.pipeline.leads:
                shares[step - first, j] = _record(trainer, step, i, found)
    if trainer.world.size > 1:
        trainer.world.allreduce(shares, "sum", "loss")
    return [_sum(row) for row in shares.tolist()]  # in order of the blocks, whatever the plan


def _record(trainer: Trainer, step: int, block: int, found: list[Any]) -> float:
    """This rank's metrics of one block; returns its share of the auxiliary losses."""
    moe, recorder = trainer.config.model.moe, trainer.recorder
    assert moe is not None
    routed = sum(s.routed for s in found)
    balance, z = _sum(float(s.balance) for s in found), _sum(float(s.z) for s in found)
    values = {f"tokens.{e}": sum(s.tokens[e] for s in found) for e in range(moe.experts)}
    if found[0].wanted is not None:
        values |= {f"wanted.{e}": sum(s.wanted[e] for s in found) for e in range(moe.experts)}
    values |= {"dropped": sum(int(s.dropped) for s in found), "unrouted": sum(int(s.unrouted) for s in found), "routed": routed}
    values |= {"entropy": _sum(float(s.entropy) for s in found) / routed, "balance": balance, "z": z}
    values["causal"] = int(moe.gate not in NOT_CAUSAL)
    recorder.begin(step + 1)
    for name, value in values.items():
        recorder.metric(f"moe.{block}.{name}", value)
    return balance + z


def _sum(values: Any) -> float:
    """One after the other: sums of equal numbers have equal bits."""
    total = 0.0
    for value in values:
        total += value
    return total
