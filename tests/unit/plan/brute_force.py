"""Every partition there is, with its price from the definitions alone: the naive twin of the dynamic program."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod

from hpcpar.plan.costs import Layers, Level
from hpcpar.schedule import flow

Plan = list[tuple[int, int, int, "Plan | None"]]  # stages of a level: (first layer, last layer, components, plan inside one component)


def compositions(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as an ordered sum of positive numbers."""
    if parts == 1:
        yield (n,)
        return
    for first in range(1, n - parts + 2):
        for rest in compositions(n - first, parts - 1):
            yield (first, *rest)


def plans(i: int, j: int, levels: tuple[Level, ...], straight: bool) -> Iterator[Plan]:
    """All plans for layers i .. j that use every component of every level (innermost first)."""
    m = levels[-1].components
    for count in range(1, min(j - i + 1, m) + 1):
        for sizes in compositions(j - i + 1, count):
            starts = [i + sum(sizes[:x]) for x in range(count)]
            for copies in compositions(m, count):
                if straight and max(copies) > 1:
                    continue
                heads = [(a, a + n - 1, r) for a, n, r in zip(starts, sizes, copies, strict=True)]
                yield from filled(heads, levels[:-1], straight)


def filled(heads: list[tuple[int, int, int]], inner: tuple[Level, ...], straight: bool) -> Iterator[Plan]:
    """All ways to plan the insides of the components of some stages."""
    if not heads:
        yield []
        return
    a, b, r = heads[0]
    for inside in plans(a, b, inner, straight) if inner else (None,):
        for rest in filled(heads[1:], inner, straight):
            yield [(a, b, r, inside), *rest]


def seconds(layers: Layers, levels: tuple[Level, ...], plan: Plan | None, first: int, last: int) -> float:
    """The time of a minibatch of layers first .. last under a plan."""
    if plan is None:
        return sum(layers.compute_s[first : last + 1])
    rate, found = levels[-1].bytes_per_s, 0.0
    for x, (a, b, r, inside) in enumerate(plan):
        reduction = 2 * (r - 1) * sum(layers.weight_bytes[a : b + 1]) / rate
        found = max(found, max(seconds(layers, levels[:-1], inside, a, b), reduction) / r)
        if x + 1 < len(plan):
            found = max(found, 2 * layers.output_bytes[b] / rate)
    return found


def flat(plan: Plan, copies: int = 1) -> list[tuple[int, int, int]]:
    """(first layer, last layer, replicas) of the stages of a run."""
    out = []
    for a, b, r, inside in plan:
        out += [(a, b, r * copies)] if inside is None else flat(inside, r * copies)
    return out


def held(layers: Layers, plan: Plan) -> int:
    """Bytes of the fullest rank, with the microbatches in flight that PipeDream's schedule has."""
    stages = flat(plan)
    run = flow("pipedream", stages=len(stages), group=1, first=0, last=1, replicas=[r for _, _, r in stages])
    most = 0
    for s, (a, b, _) in enumerate(stages):
        flying, part = run.ahead(s) + 1, slice(a, b + 1)
        weights, stash = sum(layers.weight_bytes[part]), sum(layers.stash_bytes[part])
        most = max(most, flying * (weights + stash) + weights + sum(layers.optimizer_bytes[part]))
    return most


def best(layers: Layers, levels: tuple[Level, ...], limit: float = inf, straight: bool = False) -> tuple[float, int]:
    """(the least time of all plans that fit, infinite if none does; the least memory of all plans)."""
    n = len(layers)
    priced = [(seconds(layers, levels, p, 0, n - 1), held(layers, p)) for p in plans(0, n - 1, levels, straight)]
    assert all(sum(r for _, _, r in flat(p)) == prod(x.components for x in levels) for p in plans(0, n - 1, levels, straight))
    return min((t for t, b in priced if b <= limit), default=inf), min(b for _, b in priced)
