"""ZB-V (Qi et al. 2024, section 6): two chunks a rank in a V, rank r holds the stages r and 2p - 1 - r.

The stash of 1F1B, and no bubble at F = I = W.

Below m = 2p - 1 the lists are those of 2p - 1 microbatches without the ones that do not exist.

    hpcpar draw zb-v --stages 2 --microbatches 3
    0 |0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 ...
    1 |... 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
    cost 9, work 9, makespan 9.5; bubble 0.0000 of the total, 0.0000 of the ideal
    peak stash, by rank: 2 2
    peak held for W, by rank: 0.5 1.5
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank."""
    return [_rank(r, p, m) for r in range(p)]


def _rank(r: int, p: int, m: int) -> list[Action]:
    stages, whole = (r, 2 * p - 1 - r), max(2 * p - 1, m)
    count = {kind + chunk: 0 for kind in "FIW" for chunk in "01"}
    out: list[Action] = []

    def do(words: str, times: int = 1) -> None:
        """F0 I1: the next forward of chunk 0, the next input half of chunk 1."""
        for word in words.split() * times:
            if count[word] < m:
                out.append(Action(Kind(word[0]), stages[int(word[1])], count[word]))
            count[word] += 1

    do("F0", 2 * (p - r) - 1)
    do("F1 F0", r)
    do("F1 I1 W1", p - r)
    while count["F1"] < whole:
        do("F0 I0 W0 F1 I1 W1" if count["F0"] < whole else "I0 W0 F1 I1 W1")
    do("I0 I1", r)
    do("I0 W0", p - r)
    do("W1", whole - count["W1"])
    do("W0", whole - count["W0"])
    return out


FAMILIES = {"zb-v": Synchronous(actions, chunks=2)}
