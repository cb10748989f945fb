"""ZB-H2 (Qi et al. 2024): as many more forwards at the start as fill the bubble; about twice the stash of 1F1B.

Rank r starts with 2(p - 1 - r) + 1 forwards and then does I, W of 2r microbatches before, F.

    hpcpar draw zb-h2 --stages 3 --microbatches 5
    0 |F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 .....
    1 |.. F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 ..
    2 |..... F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
    cost 15, work 15, makespan 17; bubble 0.0000 of the total, 0.0000 of the ideal
    peak stash, by rank: 5 3 1
    peak held for W, by rank: 1 3 5
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank."""
    out = []
    for r in range(p):
        ahead, late = min(2 * (p - 1 - r) + 1, m), 2 * r
        mine = [Action(Kind.F, r, k) for k in range(ahead)]
        for k in range(m):
            mine.append(Action(Kind.I, r, k))
            if k >= late:
                mine.append(Action(Kind.W, r, k - late))
            if k + ahead < m:
                mine.append(Action(Kind.F, r, k + ahead))
        out.append(mine + [Action(Kind.W, r, k) for k in range(max(0, m - late), m)])
    return out


FAMILIES = {"zb-h2": Synchronous(actions)}
