"""Interleaved 1F1B (Narayanan et al. 2021, Megatron-LM): rank r holds the v stages r, p + r, 2p + r, …, so that the bubble is 1/v.

Microbatches go in groups of p through one chunk after the other. Where p does not divide m the lists are those of the next multiple
without the microbatches that do not exist: a list that ends still ends when a microbatch is left out of all ranks.

    hpcpar draw interleaved --stages 2 --microbatches 4 --chunks 2
    from 0
    0 |0F0 0F1 2F0 2F1 0F2 ... 2B0---- 0F3 2B1---- 2F2 0B0---- 2F3 0B1---- ... 2B2-
    1 |... 1F0 1F1 3F0 3B0---- 3F1 3B1---- 1F2 1B0---- 1F3 1B1---- 3F2 3B2---- 3F3
    from 9.5
    0 |--- ... 2B3---- 0B2---- 0B3----
    1 |3B3---- 1B2---- 1B3---- .......
    cost 13.5, work 12, makespan 13.5; bubble 0.1111 of the total, 0.1250 of the
      ideal
    peak stash, by rank: 2.5 1.5
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank; rank r starts with 2(p - r - 1) + (v - 1)p forwards of chunks, if there are so many."""
    groups = range(0, m, p)
    order = [(c, k) for g in groups for c in range(v) for k in range(g, g + p)]
    back = [(c, k) for g in groups for c in reversed(range(v)) for k in range(g, g + p)]
    out = []
    for r in range(p):
        ahead = min(2 * (p - r - 1) + (v - 1) * p, len(order))
        whole = [(Kind.F, *x) for x in order[:ahead]]
        for n, x in enumerate(back):
            if n + ahead < len(order):
                whole.append((Kind.F, *order[n + ahead]))
            whole.append((Kind.B, *x))
        out.append([Action(kind, c * p + r, k) for kind, c, k in whole if k < m])
    return out


FAMILIES = {"interleaved": Synchronous(actions, chunks=None)}
