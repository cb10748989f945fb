"""Chimera (Li and Hoefler 2021): two 1F1B pipelines in opposite directions, whose slots fit into one another.

Every stage has two copies of its parameters, on rank s and on rank p - 1 - s, whose gradients are summed (D). The first half of the
microbatches enters at rank 0, the second half at rank p - 1; units of p microbatches follow one another without a flush.

    hpcpar draw chimera --stages 4 --microbatches 4
    0 |0F0 0F1 ... 3F2 3B2---- 3F3 3B3---- ... 0B0---- ....... 0B1----
    1 |... 1F0 2F2 1F1 2F3 ... 2B2---- 1B0---- 2B3---- 1B1---- .......
    2 |... 1F2 2F0 1F3 2F1 ... 2B0---- 1B2---- 2B1---- 1B3---- .......
    3 |0F2 0F3 ... 3F0 3B0---- 3F1 3B1---- ... 0B2---- ....... 0B3----
    cost 16, work 12, makespan 16; bubble 0.2500 of the total, 0.3333 of the ideal
    peak stash, by rank: 3 4 4 3
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank, in order of their slots, of which a forward and a backward take one each.

    The j-th microbatch of unit u is forwarded on stage s in slot 2pu + 2j + s and differentiated in slot 2pu + 2j + 2p - 1 - s.
    The directions never meet: p is even, so their slots on a rank differ in parity.
    """
    down = -(-m // 2)
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(p)]
    for start, count, up in ((0, down, False), (down, m - down, True)):
        for i in range(count):
            unit, j = divmod(i, p // 2)
            for s in range(p):
                at, mine = 2 * p * unit + 2 * j, slots[p - 1 - s if up else s]
                mine.append((at + s, Action(Kind.F, s, start + i)))
                mine.append((at + 2 * p - 1 - s, Action(Kind.B, s, start + i)))
    return [[a for _, a in sorted(mine, key=lambda x: x[0])] for mine in slots]


FAMILIES = {"chimera": Synchronous(actions, copies=2)}
