"""DualPipe (DeepSeek-V3 2024): two pipelines in opposite directions over the same ranks, each rank holds stage r and stage p - 1 - r.

Every stage has two copies of its parameters, whose gradients are summed (D) so that they stay equal. The first half of the microbatches
enters at rank 0, the second half at rank p - 1. Below m = 2p the lists are those of p microbatches in each direction without the ones
that do not exist.

    hpcpar draw dualpipe --stages 4 --microbatches 8
    from 0
    0 |0F0 0F1 0F2 3F4 3I4 3W4 3F5 0F3 3B5---- ... 3F6 0B0---- 3B6---- ... 3F7 0B1-
    1 |... 1F0 2F4 1F1 2F5 1F2 2B4---- 2F6 1B0---- 1F3 2B5---- 2F7 1B1---- 2B6----
    2 |... 1F4 2F0 1F5 2F1 1F6 2B0---- 2F2 1B4---- 1F7 2B1---- 2F3 1B5---- 2B2----
    3 |0F4 0F5 0F6 3F0 3I0 3W0 3F1 0F7 3B1---- ... 3F2 0B4---- 3B2---- ... 3F3 0B5-
    from 19
    0 |--- 3B7---- 0I2 0W2 0I3 0W3
    1 |1B2---- ... 2I7 1I3 2W7 1W3
    2 |1B6---- ... 2I3 1I7 2W3 1W7
    3 |--- 3B3---- 0I6 0W6 0I7 0W7
    cost 26, work 24, makespan 26; bubble 0.0769 of the total, 0.0833 of the ideal
    peak stash, by rank: 5 5 5 5
    peak held for W, by rank: 1 2 2 1
"""

from __future__ import annotations

from hpcpar.schedule.action import Action
from hpcpar.schedule.dualpipe_v import steps
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank; rank p - 1 - r does what rank r does, with the directions exchanged."""
    down, half = -(-m // 2), p // 2
    whole = max(down, p)
    out = []
    for rank in range(p):
        r = min(rank, p - 1 - rank)
        mirrored = rank >= half
        stages = (p - 1 - rank, rank) if mirrored else (rank, p - 1 - rank)  # of half 0 and of half 1
        starts, counts = (0, down), (down, m - down)  # of the directions down and up
        mine = []
        for kind, side, k in steps(r, half, whole):
            up = side ^ mirrored
            if k < counts[up]:
                mine.append(Action(kind, stages[side], starts[up] + k))
        out.append(mine)
    return out


FAMILIES = {"dualpipe": Synchronous(actions, copies=2, paired=True)}
