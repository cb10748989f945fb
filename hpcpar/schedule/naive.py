"""Naive model parallelism: one microbatch at a time, all ranks but one wait.

hpcpar draw naive --stages 3 --microbatches 2
0 |F0 ................. B0--- F1 ................. B1---
1 |.. F0 ........ B0--- ........ F1 ........ B1--- .....
2 |..... F0 B0--- ................. F1 B1--- ...........
cost 18, work 6, makespan 18; bubble 0.6667 of the total, 2.0000 of the ideal
peak stash, by rank: 1 1 1

    hpcpar draw naive --stages 3 --microbatches 2
    0 |F0 ................. B0--- F1 ................. B1---
    1 |.. F0 ........ B0--- ........ F1 ........ B1--- .....
    2 |..... F0 B0--- ................. F1 B1--- ...........
    cost 18, work 6, makespan 18; bubble 0.6667 of the total, 2.0000 of the ideal
    peak stash, by rank: 1 1 1
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank; rank r holds stage r."""
    return [[Action(kind, r, k) for k in range(m) for kind in (Kind.F, Kind.B)] for r in range(p)]


FAMILIES = {"naive": Synchronous(actions)}
