"""The steady state of an asynchronous schedule: what its period takes, without fill and drain."""

from __future__ import annotations

from math import ceil, gcd, lcm

from hpcpar.schedule.clock import Times, clock
from hpcpar.schedule.flow import Flow
from hpcpar.schedule.lower import lower

ACTIONS = 6000  # forwards by which the two flows differ, at least where that is cheap


def bubble_steady(flow: Flow, times: Times, *, tied: bool = False, clip: bool = False) -> float:
    """Idle share of the total of the period: (period - work) / period, with the work of the busiest rank.

    The period is the growth of the makespan between two flows that differ by whole rounds of all stages. Both are long enough to leave the
    fill behind, and where lists are short they differ by many rounds, because latencies can make the times repeat only after several.
    """
    p, m = flow.stages, flow.group
    round_ = lcm(*flow.replicas, p) if m == 1 else p // gcd(p, m)
    more = round_ * max(1, ACTIONS // (p * m * round_))
    long = ceil(3 * flow.ranks / (m * round_)) * round_ + (2 if clip else 0)  # lazy updates are first waited for in the third batch
    a, b = (
        clock(lower(Flow(flow.name, flow.rule, flow.replicas, m, 0, n * m, flow.lazy).schedule(), tied=tied, clip=clip), times)
        for n in (max(long, more), max(long, more) + more)
    )
    work = max(y - x for x, y in zip(a.works, b.works, strict=True))
    period = b.makespan - a.makespan
    return max(0.0, (period - work) / period) if period else 0.0
