"""1F1B with a flush (PipeDream-flush, Narayanan et al. 2021): one forward, one backward, so that rank r stashes at most p - r.

hpcpar draw 1f1b --stages 4 --microbatches 4
0 |F0 F1 F2 F3 ................. B0--- .. B1--- .. B2--- .. B3---
1 |.. F0 F1 F2 ........... B0--- F3 B1--- .. B2--- .. B3--- .....
2 |..... F0 F1 ..... B0--- F2 B1--- F3 B2--- .. B3--- ...........
3 |........ F0 B0--- F1 B1--- F2 B2--- F3 B3--- .................
cost 21, work 12, makespan 21; bubble 0.4286 of the total, 0.7500 of the ideal
peak stash, by rank: 4 3 2 1

    hpcpar draw 1f1b --stages 4 --microbatches 4
    0 |F0 F1 F2 F3 ................. B0--- .. B1--- .. B2--- .. B3---
    1 |.. F0 F1 F2 ........... B0--- F3 B1--- .. B2--- .. B3--- .....
    2 |..... F0 F1 ..... B0--- F2 B1--- F3 B2--- .. B3--- ...........
    3 |........ F0 B0--- F1 B1--- F2 B2--- F3 B3--- .................
    cost 21, work 12, makespan 21; bubble 0.4286 of the total, 0.7500 of the ideal
    peak stash, by rank: 4 3 2 1
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank; rank r holds stage r and starts with min(p - r - 1, m) forwards."""
    out = []
    for r in range(p):
        ahead = min(p - r - 1, m)
        mine = [Action(Kind.F, r, k) for k in range(ahead)]
        for k in range(m):
            if k + ahead < m:
                mine.append(Action(Kind.F, r, k + ahead))
            mine.append(Action(Kind.B, r, k))
        out.append(mine)
    return out


FAMILIES = {"1f1b": Synchronous(actions)}
