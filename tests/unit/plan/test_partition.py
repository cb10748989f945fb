"""The dynamic program against every partition there is, against laws, and against an example worked by hand."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import inf, prod

import brute_force
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcpar.errors import PlanError
from hpcpar.plan.costs import Layers, Level
from hpcpar.plan.partition import partition
from hpcpar.schedule import flow

LEVELS = [(1, 1), (2, 1), (1, 3), (2, 2), (3, 2), (2, 3)]


def examples(count: int) -> settings:
    """So many examples, however long one takes."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def models(draw: st.DrawFn, most: int = 6, least: int = 1) -> Layers:
    """Layers with times and bytes that compete: neither compute nor links always decide. Zeros and ties occur."""
    n = draw(st.integers(least, most))

    def some(top: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(0, top), min_size=n, max_size=n)))

    times = tuple(t / 8 for t in some(40))
    return Layers(tuple(f"l{i}" for i in range(n)), times, some(9), some(9), some(9), some(9))


rates = st.sampled_from([0.5, 1.0, 3.0, 10.0, inf])


def agree(layers: Layers, levels: tuple[Level, ...], limit: int | None, straight: bool = False) -> None:
    """The program finds the least time, and the least memory where nothing fits; what it returns has that time and fits."""
    time_s, least = brute_force.best(layers, levels, inf if limit is None else limit, straight)
    if time_s == inf:
        with pytest.raises(PlanError, match=rf"--memory {least};"):
            partition(layers, levels, limit, straight)
        assert partition(layers, levels, least, straight).stages
        return
    found = partition(layers, levels, limit, straight)
    assert found.time_s == pytest.approx(time_s, rel=1e-12, abs=0)
    consistent(found, limit)


def consistent(found, limit: int | None) -> None:  # type: ignore[no-untyped-def]
    """Stages cover all layers and ranks, each slot once; times, flights and bytes are those of the stages."""
    layers, levels, stages = found.layers, found.levels, found.stages
    ranks = prod(x.components for x in levels)
    assert [i for s in stages for i in range(s.first, s.last + 1)] == list(range(len(layers)))
    assert sorted(found.slots) == list(range(ranks)) and sum(found.replicas) == ranks
    assert all(len(s.slots) == s.replicas for s in stages)
    run = flow("pipedream", stages=len(stages), group=1, first=0, last=1, replicas=found.replicas)
    for i, s in enumerate(stages):
        assert s.in_flight == run.ahead(i) + 1
        assert s.held_bytes == layers.held_bytes(s.first, s.last, s.in_flight)
        assert limit is None or s.held_bytes <= limit
        assert s.compute_s == pytest.approx(sum(layers.compute_s[s.first : s.last + 1]) / s.replicas)
        assert max(s.compute_s, s.reduce_s, s.send_s) <= found.time_s


def drawn(seed: int, n: int) -> tuple[Layers, int]:
    """Layers whose times, links and bytes are of one size, none zero; and a limit that about half of all partitions meet."""
    of = random.Random(seed)
    weights, stash = ([of.randrange(1, 60) for _ in range(n)] for _ in range(2))
    layers = Layers(
        tuple(f"l{i}" for i in range(n)),
        tuple(of.uniform(0.1, 3.0) for _ in range(n)),
        tuple(of.randrange(1, 60) for _ in range(n)),
        tuple(weights),
        tuple(stash),
        tuple(of.randrange(120) for _ in range(n)),
    )
    return layers, round(of.uniform(0.5, 3.0) * (2 * sum(weights) + sum(stash)))


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("ranks", range(1, 6))
def test_every_small_case_is_optimal(n: int, ranks: int) -> None:
    for seed in range(25):
        layers, limit = drawn(100 * n + 10 * ranks + 1000 * seed, n)
        levels = (Level(ranks, random.Random(seed).choice([15.0, 40.0, 100.0])),)
        agree(layers, levels, None)
        agree(layers, levels, limit)
        if ranks <= n:
            agree(layers, levels, limit, straight=True)


@pytest.mark.parametrize("components", LEVELS)
@pytest.mark.parametrize("n", range(1, 7))
def test_every_small_case_of_two_levels_is_optimal(n: int, components: tuple[int, int]) -> None:
    for seed in range(4):
        layers, limit = drawn(7 * n + 1000 * seed, n)
        levels = (Level(components[0], 200.0), Level(components[1], random.Random(seed).choice([15.0, 40.0, 100.0])))
        agree(layers, levels, None)
        agree(layers, levels, limit)


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("ranks", range(1, 6))
@pytest.mark.parametrize("limited", [False, True])
def test_one_level_is_optimal(n: int, ranks: int, limited: bool) -> None:
    @examples(40)
    @given(models(n, n), rates, st.integers(0, 150))
    def every(layers: Layers, rate: float, limit: int) -> None:
        agree(layers, (Level(ranks, rate),), limit if limited else None)

    every()


@pytest.mark.parametrize("components", LEVELS)
@pytest.mark.parametrize("limited", [False, True])
def test_two_levels_are_optimal(components: tuple[int, int], limited: bool) -> None:
    @examples(40)
    @given(models(5), rates, rates, st.integers(0, 200))
    def every(layers: Layers, inner: float, outer: float, limit: int) -> None:
        agree(layers, (Level(components[0], inner), Level(components[1], outer)), limit if limited else None)

    every()


@examples(30)
@given(models(3), rates, rates, st.integers(0, 300))
def test_three_levels_are_optimal(layers: Layers, inner: float, outer: float, limit: int) -> None:
    agree(layers, (Level(2, inner), Level(2, outer), Level(2, outer / 2)), limit)


@examples(200)
@given(models(6), st.integers(1, 6), rates, st.integers(0, 150), st.booleans())
def test_straight_is_optimal(layers: Layers, ranks: int, rate: float, limit: int, limited: bool) -> None:
    if ranks > len(layers):
        with pytest.raises(PlanError, match=f"{ranks} stages without replicas cannot be made of {len(layers)} layers"):
            partition(layers, (Level(ranks, rate),), straight=True)
        return
    agree(layers, (Level(ranks, rate),), limit if limited else None, straight=True)
    found = partition(layers, (Level(ranks, rate),), straight=True)
    assert found.replicas == [1] * ranks


@examples(100)
@given(models(8), st.sampled_from([(1, 4), (4, 1), (2, 3), (3, 3)]), rates, st.integers(1, 200), st.integers(1, 50))
def test_more_memory_and_faster_links_are_never_worse(
    layers: Layers, components: tuple[int, int], rate: float, limit: int, more: int
) -> None:
    def time_s(rate: float, limit: int | None) -> float:
        try:
            return partition(layers, (Level(components[0], 2 * rate), Level(components[1], rate)), limit).time_s
        except PlanError:
            return inf

    assert time_s(rate, None) <= time_s(rate, limit + more) <= time_s(rate, limit)
    assert time_s(2 * rate, limit) <= time_s(rate, limit)


@examples(40)
@given(models(8), st.integers(1, 8))
def test_free_links_reach_the_bound(layers: Layers, ranks: int) -> None:
    """No partition beats all layers shared by all ranks; with free links and no limit replication reaches it."""
    assert partition(layers, (Level(ranks),)).time_s == pytest.approx(sum(layers.compute_s) / ranks)
    assert partition(layers, (Level(ranks, 1.0),)).time_s >= sum(layers.compute_s) / ranks * (1 - 1e-12)


# Two layers, the first costly and light, the second cheap and heavy:  T = 9, 3   a = 2, 0   w = 1, 30   B = 2
#   3 replicas of both          1/3 max(12, 2 x 2 x 31 / 2 = 62)     = 20.67
#   first x 2, second x 1       max(1/2 max(9, 2 x 1 x 1 / 2), 2 x 2 / 2 = 2, 3) = 4.5        <- the best
#   first x 1, second x 2       max(9, 2, 1/2 max(3, 30))             = 15
HAND = Layers(("a", "b"), (9.0, 3.0), (2, 0), (1, 30), (4, 5), (2, 60))


def test_the_worked_example() -> None:
    found = partition(HAND, (Level(3, 2.0),))
    assert found.time_s == 4.5 and found.replicas == [2, 1] and [s.last for s in found.stages] == [0, 1]
    assert found.bottleneck.kind == "compute" and found.slots == (0, 1, 2)
    # Stage 0: ceil(3 / 2) = 2 in flight, 2 x (1 + 4) + 1 + 2 = 13 bytes. Stage 1: 1 in flight, 30 + 5 + 30 + 60 = 125 bytes.
    assert [(s.in_flight, s.held_bytes) for s in found.stages] == [(2, 13), (1, 125)]
    assert partition(HAND, (Level(3, 2.0),), 125).replicas == [2, 1]
    with pytest.raises(PlanError, match=r"--memory 124: .* over 3 ranks .* --memory 125;"):
        partition(HAND, (Level(3, 2.0),), 124)


def test_a_slow_link_is_the_bottleneck() -> None:
    found = partition(replace(HAND, output_bytes=(40, 0)), (Level(2, 2.0),), straight=True)
    assert found.time_s == 40 and found.bottleneck.kind == "message" and found.stages[0].send_s == 40
    found = partition(HAND, (Level(2, 2.0),), None)
    assert found.time_s == 9 and found.replicas == [1, 1]
    found = partition(Layers(("a",), (1.0,), (0,), (30,), (0,), (0,)), (Level(2, 2.0),))
    assert found.time_s == 15 and found.bottleneck.kind == "reduction" and found.stages[0].reduce_s == 15


def test_replicas_over_nodes_of_pipelines_stand_on_different_nodes() -> None:
    """Two nodes with slow links, activations too large for them: each node a pipeline of two, the nodes replicas of one another."""
    layers = Layers(("a", "b"), (1.0, 1.0), (8, 0), (40, 40), (0, 0), (0, 0))
    found = partition(layers, (Level(2, 100.0), Level(2, 1e4)))
    assert found.time_s == pytest.approx(0.5)
    inner = partition(layers, (Level(2, 20.0), Level(2, 1e4)))  # within a node, a sum of 40 bytes is dearer than the message
    assert inner.replicas == [2, 2] and inner.slots == (0, 2, 1, 3)
    nodes = [{slot // 2 for slot in s.slots} for s in inner.stages]
    assert nodes == [{0, 1}, {0, 1}]


def test_minibatches_stay_on_their_node() -> None:
    """Replica k mod r of every stage of a component that is copied stands in the same copy."""
    found = partition(Layers(("a", "b", "c"), (4.0, 2.0, 1.0), (8, 8, 0), (0, 90, 90), (0,) * 3, (0,) * 3), (Level(4, 40.0), Level(2, 1e5)))
    flows = Counter(len({s.slots[k % s.replicas] // 4 for s in found.stages}) for k in range(24))
    assert len(found.stages) > 1 and all(s.replicas % 2 == 0 for s in found.stages)
    assert set(flows) == {1}


def test_64_layers_on_32_ranks_take_seconds() -> None:
    n = 66
    layers = Layers(
        tuple(map(str, range(n))),
        tuple(1 + (i * 37 % 11) / 7 for i in range(n)),
        tuple(i * 53 % 97 for i in range(n)),
        tuple(i * 29 % 83 for i in range(n)),
        tuple(i * 31 % 89 for i in range(n)),
        (0,) * n,
    )
    for levels in ((Level(32, 50.0),), (Level(8, 1e3), Level(4, 50.0))):
        consistent(partition(layers, levels, 9000), 9000)
