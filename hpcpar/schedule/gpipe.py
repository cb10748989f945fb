"""GPipe (Huang et al. 2019): all forwards, then all backwards, both in ascending order of microbatches.

hpcpar draw gpipe --stages 4 --microbatches 4
0 |F0 F1 F2 F3 .......................... B0--- B1--- B2--- B3---
1 |.. F0 F1 F2 F3 ................. B0--- B1--- B2--- B3--- .....
2 |..... F0 F1 F2 F3 ........ B0--- B1--- B2--- B3--- ...........
3 |........ F0 F1 F2 F3 B0--- B1--- B2--- B3--- .................
cost 21, work 12, makespan 21; bubble 0.4286 of the total, 0.7500 of the ideal
peak stash, by rank: 4 4 4 4

    hpcpar draw gpipe --stages 4 --microbatches 4
    0 |F0 F1 F2 F3 .......................... B0--- B1--- B2--- B3---
    1 |.. F0 F1 F2 F3 ................. B0--- B1--- B2--- B3--- .....
    2 |..... F0 F1 F2 F3 ........ B0--- B1--- B2--- B3--- ...........
    3 |........ F0 F1 F2 F3 B0--- B1--- B2--- B3--- .................
    cost 21, work 12, makespan 21; bubble 0.4286 of the total, 0.7500 of the ideal
    peak stash, by rank: 4 4 4 4
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank; rank r holds stage r."""
    return [[Action(kind, r, k) for kind in (Kind.F, Kind.B) for k in range(m)] for r in range(p)]


FAMILIES = {"gpipe": Synchronous(actions)}
