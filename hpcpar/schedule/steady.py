"""The steady state of an asynchronous schedule: what its period takes, without fill and drain."""

from __future__ import annotations

from math import ceil, gcd, lcm

from hpcpar.schedule.clock import Times, clock
from hpcpar.schedule.flow import Flow
from hpcpar.schedule.lower import lower


def bubble_steady(flow: Flow, times: Times, *, tied: bool = False, clip: bool = False) -> float:
    """Idle share of the total of the period: (period - work) / period, with the work of the busiest rank.

    The period is the growth of the makespan between two flows that differ by rounds of all stages and of messages between neighbours; both
    are long enough to leave the fill behind.
    """
    p, m = flow.stages, flow.group
    rounds = lcm(*flow.replicas, p) if m == 1 else p // gcd(p, m)
    long = ceil(3 * flow.ranks / (m * rounds)) * rounds + (2 if clip else 0)  # lazy updates are first waited for in the third batch
    a, b = (
        clock(lower(Flow(flow.name, flow.rule, flow.replicas, m, 0, n * m, flow.lazy).schedule(), tied=tied, clip=clip), times)
        for n in (long, long + rounds)
    )
    work = max(y - x for x, y in zip(a.works, b.works, strict=True))
    period = b.makespan - a.makespan
    return max(0.0, (period - work) / period) if period else 0.0
