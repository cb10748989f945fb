"""The all-reduce as tables: each is proven for any ranks, nodes and elements, has its closed form's cost; a broken one is refused."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar import collectives
from hpcpar.collectives import ADJOINT, ALGORITHMS, chosen, normal, table_of
from hpcpar.collectives.check import Broken, check
from hpcpar.collectives.price import Link, price
from hpcpar.collectives.table import Move, Table

NODES = st.lists(st.integers(0, 3), min_size=1, max_size=13)
NAMES = st.sampled_from(sorted(ALGORITHMS))


def run(table: Table, arrays: list[list[int]]) -> None:
    """Carry a table out on lists, all ranks in step: the naive twin of the executor."""
    for moves in table.rounds:
        sent = [(m, arrays[m.source][slice(*table.span(m, len(arrays[0])))]) for m in moves]
        for m, values in sent:
            start, stop = table.span(m, len(arrays[0]))
            held = arrays[m.destination]
            held[start:stop] = [a + b for a, b in zip(held[start:stop], values, strict=True)] if m.reduce else values


@given(NAMES, NODES, st.integers(0, 40))
def test_every_table_sums(name: str, nodes: list[int], elements: int) -> None:
    table = ALGORITHMS[name](nodes)
    check(table)
    arrays = [[100**rank * (i + 1) for i in range(elements)] for rank in range(len(nodes))]
    total = [sum(column) for column in zip(*arrays, strict=True)]
    run(table, arrays)
    assert all(a == total for a in arrays)


@given(NAMES, st.lists(st.integers(0, 3), min_size=2, max_size=9), st.data())
def test_a_table_without_one_of_its_moves_is_refused(name: str, nodes: list[int], data: st.DataObject) -> None:
    table = ALGORITHMS[name](nodes)
    k = data.draw(st.integers(0, len(table.rounds) - 1))
    i = data.draw(st.integers(0, len(table.rounds[k]) - 1))
    rounds, move = list(table.rounds), table.rounds[k][i]
    change = data.draw(st.sampled_from(["lost", "twice", "flipped"]))
    other = {"lost": (), "twice": (move, move), "flipped": (move._replace(reduce=not move.reduce),)}[change]
    rounds[k] = (*rounds[k][:i], *other, *rounds[k][i + 1 :])
    with pytest.raises(Broken):
        check(replace(table, rounds=tuple(rounds)))


@given(NAMES, st.lists(st.integers(0, 3), min_size=2, max_size=9), st.data())
def test_a_table_without_one_of_its_rounds_is_refused(name: str, nodes: list[int], data: st.DataObject) -> None:
    table = ALGORITHMS[name](nodes)
    k = data.draw(st.integers(0, len(table.rounds) - 1))
    with pytest.raises(Broken):
        check(replace(table, rounds=table.rounds[:k] + table.rounds[k + 1 :]))


def add(source: int, destination: int, first: int = 0, last: int = 1) -> Move:
    return Move(source, destination, first, last, True)


def put(source: int, destination: int, first: int = 0, last: int = 1) -> Move:
    return Move(source, destination, first, last, False)


@pytest.mark.parametrize(
    ("ranks", "rounds", "why"),
    [
        (2, [[add(0, 1)]], "lacks the contribution of rank 1"),
        (2, [[add(0, 1)], [add(1, 0)]], "adds a contribution to chunk 0 that it already has"),
        (2, [[add(0, 1), add(0, 1)]], "two messages from rank 0 to rank 1"),
        (2, [[add(0, 0)]], "no pair"),
        (2, [[add(0, 2)]], "no pair"),
        (2, [[add(0, 1, 1, 2)]], "not among 1"),
        (2, [[add(0, 1, 0, 0)]], "not among 1"),
        (2, [[put(0, 1), put(1, 0)]], "overwrites chunk 0 while it sends it"),
        (3, [[put(0, 2), add(1, 2)]], "receives from rank 0 too"),
        (3, [[add(0, 2), put(1, 2)]], "receives from rank 0 too"),
        # each rank has all three, but 0 + 1 + 2, 1 + 0 + 2 and 2 + 0 + 1 are not the same bits
        (3, [[add(i, j) for j in range(3) for i in range(3) if i != j]], "rank 2 was added in another order"),
    ],
)
def test_what_is_wrong_is_said(ranks: int, rounds: list[list[Move]], why: str) -> None:
    with pytest.raises(Broken, match=why):
        check(Table(ranks, 1, tuple(map(tuple, rounds))))


def test_sums_may_be_added_from_either_side() -> None:
    check(Table(2, 1, ((add(0, 1), add(1, 0)),)))
    check(Table(3, 1, ((add(0, 2), add(1, 2)), (put(2, 0), put(2, 1)))))


ALPHA, BETA, GAMMA = 3e-6, 1 / 7e9, 1 / 11e9
NETWORK = Link(ALPHA, 1 / BETA)


def cost(name: str, ranks: int, elements: int) -> float:
    return price(ALGORITHMS[name](range(ranks)), elements, 4, NETWORK, 1 / GAMMA)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16])
def test_ring_costs_its_closed_form(n: int) -> None:
    size = 4 * 720720
    want = 2 * (n - 1) * (ALPHA + size / n * BETA) + (n - 1) / n * size * GAMMA
    assert cost("ring", n, 720720) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 4, 16])
def test_doubling_and_halving_cost_their_closed_forms(n: int) -> None:
    size = 4 * 720720
    assert cost("doubling", n, 720720) == pytest.approx(log2(n) * (ALPHA + size * BETA + size * GAMMA), rel=1e-12)
    want = 2 * log2(n) * ALPHA + 2 * (n - 1) / n * size * BETA + (n - 1) / n * size * GAMMA
    assert cost("halving", n, 720720) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", ["doubling", "halving"])
def test_ranks_beyond_a_power_of_two_cost_two_messages_of_the_whole_array(name: str) -> None:
    whole = ALPHA + 4 * 960 * BETA
    assert cost(name, 7, 960) == pytest.approx(cost(name, 4, 960) + 2 * whole + 4 * 960 * GAMMA, rel=1e-12)


@pytest.mark.parametrize(("m", "l"), [(1, 4), (2, 2), (3, 4), (4, 1)])
def test_two_level_costs_its_closed_form(m: int, l: int) -> None:
    near, nodes, size = Link(1e-6, 3e10), [rank // l for rank in range(m * l)], 4 * 720720
    inside, across = size / l, size / l / m
    want = 2 * (l - 1) * near.message_s(inside) + 2 * (m - 1) * NETWORK.message_s(across)
    want += ((l - 1) * inside + (m - 1) * across) * GAMMA
    got = price(ALGORITHMS["two-level"](nodes), 720720, 4, NETWORK, 1 / GAMMA, nodes, near)
    assert got == pytest.approx(want, rel=1e-12)


def test_two_levels_pay_where_the_network_is_slow() -> None:
    nodes, near = [r // 4 for r in range(16)], Link(1e-6, 1e11)
    costs = {n: price(t(nodes), 1 << 22, 4, NETWORK, 1e11, nodes, near) for n, t in ALGORITHMS.items()}
    assert min(costs, key=lambda n: costs[n]) == "two-level"


@given(NODES, st.integers(0, 50))
def test_ring_and_two_levels_send_what_they_must(nodes: list[int], elements: int) -> None:
    n = len(nodes)
    for name in ("ring", "two-level"):  # the least that any all-reduce sends in all is 2 (N - 1) arrays
        table = ALGORITHMS[name](nodes)
        assert sum(table.sent(r, elements) for r in range(n)) == 2 * (n - 1) * elements
    ring, share = ALGORITHMS["ring"](nodes), -(-elements // n)
    assert all(ring.sent(r, elements) <= 2 * (n - 1) * share for r in range(n))
    assert len(ring.rounds) == 2 * (n - 1)


def test_nothing_is_sent_of_an_empty_array() -> None:
    for name in ALGORITHMS:
        assert cost(name, 6, 0) == 0
    assert cost("ring", 8, 1) == pytest.approx(14 * (ALPHA + 4 * BETA) + 7 * 4 * GAMMA)  # one element still goes around twice


def test_parts_are_the_table() -> None:
    table = table_of("two-level", (0, 0, 1, 1, 1))
    for rank in range(5):
        assert table.part(rank) == [
            mine for moves in table.rounds if (mine := tuple(m for m in moves if rank in (m.source, m.destination)))
        ]


def test_auto_is_measured_or_the_mpis_own() -> None:
    one = (0,) * 8
    short, long = chosen("auto", one, 16, 4, True), chosen("auto", one, 1 << 23, 4, True)
    assert short is table_of("doubling", one) and long is not None and long.sent(0, 1 << 23) < 2 << 23
    assert chosen("auto", (0, 1), 1 << 23, 4, True) is None and chosen("auto", one, 1 << 23, 4, False) is None
    assert chosen("mpi", one, 5, 4, True) is None and chosen("ring", (0, 1), 5, 4, False) is table_of("ring", (0, 1))
    assert normal([7, 3, 7, 0]) == (0, 1, 0, 2)


def test_every_algorithm_is_in_the_registry() -> None:
    modules = [importlib.import_module(f"hpcpar.collectives.{m.name}") for m in pkgutil.iter_modules(collectives.__path__)]
    declared = {n: f for m in modules if m.__name__ != "hpcpar.collectives.choose" for n, f in getattr(m, "ALGORITHMS", {}).items()}
    assert declared == ALGORITHMS and len(declared) == 4


def test_adjoints_come_in_pairs() -> None:
    assert all(ADJOINT[ADJOINT[c]] == c for c in ADJOINT)
