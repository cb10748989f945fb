"""ZB-H1 (Qi et al. 2024): 1F1B with the backward split; rank r does W r microbatches late, in what was its bubble.

hpcpar draw zb-h1 --stages 4 --microbatches 6
0 |F0 F1 F2 F3 ........ I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
1 |.. F0 F1 F2 ..... I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
2 |..... F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
3 |........ F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
cost 21, work 18, makespan 21; bubble 0.1429 of the total, 0.1667 of the ideal
peak stash, by rank: 4 3 2 1
peak held for W, by rank: 1 2 3 4

    hpcpar draw zb-h1 --stages 4 --microbatches 6
    0 |F0 F1 F2 F3 ........ I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
    1 |.. F0 F1 F2 ..... I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
    2 |..... F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
    3 |........ F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
    cost 21, work 18, makespan 21; bubble 0.1429 of the total, 0.1667 of the ideal
    peak stash, by rank: 4 3 2 1
    peak held for W, by rank: 1 2 3 4
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank: 1F1B's order of F and I, W of microbatch k - r behind I of microbatch k."""
    return [split(r, min(p - r - 1, m), m, late=r) for r in range(p)]


def split(r: int, ahead: int, m: int, late: int) -> list[Action]:
    """One rank that starts with `ahead` forwards and does W `late` microbatches after I."""
    mine = [Action(Kind.F, r, k) for k in range(ahead)]
    for k in range(m):
        if k + ahead < m:
            mine.append(Action(Kind.F, r, k + ahead))
        mine.append(Action(Kind.I, r, k))
        if k >= late:
            mine.append(Action(Kind.W, r, k - late))
    return mine + [Action(Kind.W, r, k) for k in range(max(0, m - late), m)]


FAMILIES = {"zb-h1": Synchronous(actions)}
