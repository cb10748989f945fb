"""DualPipe-V (DeepSeek 2025, "cut in half"): DualPipe's steps on a V, rank r holds the stages r and 2p - 1 - r, one copy of each.

A forward of one chunk and a backward of the other stand side by side. Below m = 2p the lists are those of 2p microbatches without the
ones that do not exist.

    hpcpar draw dualpipe-v --stages 2 --microbatches 4
    from 0
    0 |0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1---- ... 3F2 0B0---- 3B2---- ... 3F3 0B1-
    1 |... 1F0 2F0 1F1 2F1 1F2 2B0---- 2F2 1B0---- 1F3 2B1---- 2F3 1B1---- 2B2----
    from 9.5
    0 |--- 3B3---- 0I2 0W2 0I3 0W3
    1 |1B2---- ... 2I3 1I3 2W3 1W3
    cost 13, work 12, makespan 13; bubble 0.0769 of the total, 0.0833 of the ideal
    peak stash, by rank: 2.5 2.5
    peak held for W, by rank: 0.5 1
"""

from __future__ import annotations

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Synchronous

F, I, W = Kind.F, Kind.I, Kind.W


def actions(p: int, m: int, v: int) -> list[list[Action]]:
    """The compute actions of each rank."""
    whole = max(m, 2 * p)
    out = []
    for r in range(p):
        stages = (r, 2 * p - 1 - r)
        mine = [Action(kind, stages[half], k) for kind, half, k in steps(r, p, whole)]
        out.append([a for a in mine if a.microbatch < m])  # type: ignore[operator]
    return out


def steps(r: int, p: int, n: int) -> list[tuple[Kind, int, int]]:
    """DualPipe's eight steps on position r of p, where each half (a chunk of the V, or a direction) has n >= 2p microbatches.

    Returns (kind, half, number of the microbatch within the half) in order. Each I has its W later, first in, first out.
    """
    out: list[tuple[Kind, int, int]] = []
    forward, backward = [0, 0], [0, 0]
    late: list[tuple[int, int]] = []

    def do(words: str, times: int = 1) -> None:
        """F0 B1: a forward of half 0, a whole backward of half 1; I1: its input half; W: the oldest weight half."""
        for word in words.split() * times:
            if word == "W":
                out.append((W, *late.pop(0)))
                continue
            kind, half = Kind(word[0]), int(word[1])
            count = forward if kind is F else backward
            out.append((kind, half, count[half]))
            if kind is I:
                late.append((half, count[half]))
            count[half] += 1

    do("F0", 2 * (p - r - 1))
    do("F0 F1", r + 1)
    do("I1 W F1", p - r - 1)
    do("F0 B1 F1 B0", n - 2 * p + r + 1)  # the steady state
    do("B1 F1 B0", p - r - 1)
    whole, odd = divmod(r + 1, 2)  # of these r + 1 pairs the second half is split
    do("B1 B0", whole)
    do("B1 I0", odd)
    do("I1 I0", whole)
    do("W I0", p - r - 1)
    do("W", r + 1)
    return out


FAMILIES = {"dualpipe-v": Synchronous(actions, chunks=2, paired=True)}
