"""Placements of offload: by hand, against a checker that walks through the moves with a device of its own, and at the limit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.config import Model
from hpcpar.errors import PlanError
from hpcpar.forms.accesses import Access, Buffer, Iteration, iteration, units
from hpcpar.forms.activations import Shape
from hpcpar.forms.offload import Move, Placement, place, working_set
from hpcpar.nn.describe import layers
from hpcpar.schedule.action import parse

EVERY = frozenset({"weights", "optimizer", "saved"})


def weights(i: int) -> Buffer:
    return Buffer("weights", 0, i)


def reads(*order: int, size: int = 1, beside: int = 0) -> Iteration:
    """Weights read in an order."""
    found = tuple(Access("F", 0, i, uses=(weights(i),), beside=beside) for i in order)
    return Iteration(found, {weights(i): size for i in sorted(set(order))}, {"gradients": 0})


def execute(plan: Placement, movable: frozenset[str], start: Sequence[Buffer], stale: set[Buffer]) -> int:
    """Walk through a round as slowly as may be: a move out ends only where its room is needed. Returns the most bytes; asserts the rest.

    `stale` holds the buffers whose copy on the host is out of date, before and after.
    """
    there, leaving, most = set(start), [], 0
    sizes = plan.sizes

    def make_room(beside: int) -> None:
        nonlocal most
        used = plan.fixed + sum(sizes[b] for b in there) + sum(sizes[b] for b in leaving) + beside
        while used > plan.limit and leaving:
            used -= sizes[leaving.pop(0)]
        assert used <= plan.limit, "no room, and nothing on its way out"
        most = max(most, used)

    def issue(moves: Sequence[Move]) -> None:
        for kind, b in moves:
            assert b.kind in movable
            if kind == "in":
                assert b not in there
                if b in leaving:
                    leaving.remove(b)
                assert b not in stale, f"{b} comes from a copy that is out of date"
                there.add(b)
                make_room(0)
            else:
                there.remove(b)
                if kind == "out":
                    leaving.append(b)
                    stale.discard(b)
                else:
                    assert b not in stale, f"{b} is dropped, and its copy on the host is out of date"

    for moves, a in zip(plan.moves, plan.accesses, strict=False):
        issue(moves)
        assert there >= set(a.uses), f"{a} lacks {set(a.uses) - there}"
        there |= set(a.makes)
        stale |= set(a.makes) | set(a.writes)
        make_room(a.beside)
        there -= set(a.frees)
        stale -= set(a.frees)
    issue(plan.moves[-1])
    assert there == set(start)
    return most


def test_by_hand() -> None:
    """Room for two of three: the one whose next use is furthest leaves, each comes as early as there is room, and the round closes."""
    plan = place(reads(0, 1, 2, 1, 0), EVERY, 2)
    text = [[f"{kind} {b.item}" for kind, b in slot] for slot in plan.moves]
    # during access 2 (of 2) stand 1 and 2; 0 was last used at access 0 and is needed again at access 4
    assert set(plan.home) == {weights(0), weights(1)}
    assert text == [[], ["drop 0", "in 2"], [], ["drop 2", "in 0"], [], []]
    assert (plan.working_set, plan.peak, plan.moved_bytes("in"), plan.moved_bytes("out")) == (1, 2, 2, 0)


def test_nothing_moves_where_all_has_room() -> None:
    plan = place(reads(0, 1, 2, 1, 0, size=5), EVERY, 15)
    assert not any(plan.moves) and set(plan.home) == {weights(0), weights(1), weights(2)} and plan.peak == 15


def test_one_at_a_time_is_enough() -> None:
    plan = place(reads(0, 1, 2, beside=3), EVERY, 4)
    assert plan.moved_bytes("in") == 3 and plan.working_set == plan.peak == 4
    with pytest.raises(PlanError):
        place(reads(0, 1, 2, beside=3), EVERY, 3)


def test_what_was_written_goes_out_and_behind_its_last_use() -> None:
    both = (weights(0), weights(1))
    found = (
        Access("F", 0, 0, uses=(both[0],)),
        Access("F", 0, 1, uses=(both[1],)),
        Access("U", 0, 0, uses=(both[0],), writes=(both[0],)),
        Access("U", 0, 1, uses=(both[1],), writes=(both[1],)),
    )
    plan = place(Iteration(found, {both[0]: 2, both[1]: 3}, {"gradients": 1}), EVERY, 4)
    text = [[f"{kind} {b.item}" for kind, b in slot] for slot in plan.moves]
    # 1 was written last and begins the next round; each written one is copied back behind its update, a read one is dropped
    assert plan.home == (both[1],)
    assert text == [["out 1", "in 0"], ["drop 0", "in 1"], ["drop 1", "in 0"], ["out 0", "in 1"], []]
    start, stale = plan.home, set(both) & set(plan.home)
    assert execute(plan, EVERY, start, stale) == plan.peak == 4


def test_a_copy_has_the_time_of_an_access() -> None:
    """1 is written by access 1 and leaves behind it, beside access 2; its room is counted on from access 3, and so 2 comes no earlier."""
    one = (weights(1),)
    found = (Access("F", 0, 0, uses=(weights(0),)), Access("U", 0, 1, uses=one, writes=one))
    found += (Access("F", 0, 0, uses=(weights(0),)), Access("F", 0, 2, uses=(weights(2),)))
    plan = place(Iteration(found, {weights(i): 1 for i in range(3)}, {}), EVERY, 2)
    moves = [[f"{kind} {b.item}" for kind, b in slot] for slot in plan.moves]
    assert moves[2] == ["out 1"] and moves[3] == ["in 2"]


def test_the_fewest_moves_of_equal_buffers() -> None:
    """Belady's choice is the best there is: compared with every choice of what leaves, on short rounds from one start to the same end."""

    def fewest(order: tuple[int, ...], room: int, start: frozenset[int]) -> int:
        states = {start: 0}
        for i in order:
            following: dict[frozenset[int], int] = {}
            for there, cost in states.items():
                if i in there:
                    options = [(there, cost)]
                else:
                    options = [(frozenset(kept) | {i}, cost + 1) for kept in itertools.combinations(there, min(len(there), room - 1))]
                for state, price in options:
                    following[state] = min(price, following.get(state, price))
            states = following
        return min(cost + len(start - there) for there, cost in states.items())

    for order in itertools.product(range(3), repeat=6):
        it = reads(*order)
        for room in (1, 2):
            plan = place(it, EVERY, room)
            home = frozenset(b.item for b in plan.home)
            assert plan.moved_bytes("in") <= fewest(order, room, home), (order, room, plan.moves)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Iteration, frozenset[str]]:
    """Forwards, backwards and updates of a few layers and microbatches in any order that can be, with sizes at random."""
    depth, count = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    size = st.integers(0, 9)
    sizes: dict[Buffer, int] = {weights(i): 1 + draw(size) for i in range(depth)}
    sizes |= {Buffer("optimizer", 0, i): 2 * sizes[weights(i)] for i in range(depth)}
    waiting, open_, found = list(range(count)), [], []
    while waiting or open_:
        if waiting and (not open_ or draw(st.booleans())):
            k = waiting.pop(0)
            open_.append(k)
            for i in range(depth):
                b = Buffer("saved", 0, i, k)
                sizes[b] = draw(size)
                found.append(Access("F", 0, i, k, (weights(i),), (b,), beside=draw(size)))
        else:
            k = open_.pop(draw(st.integers(0, len(open_) - 1)))
            for i in reversed(range(depth)):
                b = Buffer("saved", 0, i, k)
                found.append(Access("B", 0, i, k, (weights(i), b), frees=(b,), beside=draw(size)))
    for i in range(depth):
        both = (weights(i), Buffer("optimizer", 0, i))
        found.append(Access("U", 0, i, uses=both, writes=both))
    movable = frozenset(draw(st.sets(st.sampled_from(sorted(EVERY)))))
    return Iteration(tuple(found), sizes, {"gradients": draw(size)}), movable


@settings(max_examples=400, deadline=None)
@given(rounds(), st.sampled_from([1.0, 1.05, 1.3, 2.0, 9.0]), st.data())
def test_any_round_can_be_executed(found: tuple[Iteration, frozenset[str]], more: float, data: st.DataObject) -> None:
    it, movable = found
    need = working_set(it, movable).bytes
    if need > 1:
        with pytest.raises(PlanError):
            place(it, movable, need - 1)
    plan = place(it, movable, int(need * more))
    stale: set[Buffer] = set()  # what a run begins with was just copied from the host; later rounds begin as the one before ended
    for _ in range(3):
        most = execute(plan, movable, plan.home, stale)
        assert need <= most <= plan.limit
        assert plan.peak <= plan.limit and most <= plan.limit
    once = Iteration(tuple(a for a in it.accesses if a.kind == "F" and a.microbatch == 0), it.sizes, it.fixed)
    forward = Iteration(tuple(Access("F", 0, a.index, uses=a.uses) for a in once.accesses), it.sizes, it.fixed)
    aside = place(forward, movable, plan.limit, plan.home)
    execute(aside, movable, plan.home, set(stale))


def test_units_are_layers_and_a_shared_weight_stands_alone() -> None:
    model = Model(layers=2, width=8, heads=2, context=4, vocabulary=16)
    found = units(layers(model))
    assert [u.layers for u in found] == [(0, 3), (0,), (1,), (2,), (3,)]
    assert found[0].names == ("tokens.weight",) and found[1].names == ("positions.weight",)
    assert sum(u.size for u in found) == sum({p.name: p.size for layer in layers(model) for p in layer.parameters}.values())
    apart = units(layers(Model(layers=1, width=8, heads=2, context=4, vocabulary=16, tied=False)))
    assert [u.layers for u in apart] == [(0,), (1,), (2,)]


def test_the_dry_iteration_follows_the_actions() -> None:
    model = Model(layers=2, width=8, heads=2, context=4, vocabulary=16)
    actions = [parse(w) for w in ("0F0", "0F1", "0B0", "0B1", "0U")]
    it = iteration({0: layers(model)}, actions, Shape(model, 3, 8), 2, 2)
    order = [(a.kind, a.index, a.microbatch) for a in it.accesses]
    want = [("F", i, k) for k in (0, 1) for i in range(4)] + [("B", i, k) for k in (0, 1) for i in (3, 2, 1, 0)]
    assert order == want + [("U", u, -1) for u in range(5)]
    size = sum({p.name: p.size for layer in layers(model) for p in layer.parameters}.values())
    assert it.fixed == {"gradients": 8 * (size + 16 * 8), "tokens": 2 * 2 * 4 * 12}
    assert sum(s for b, s in it.sizes.items() if b.kind == "optimizer") == 2 * 8 * size
    tied = Buffer("weights", 0, 0)
    assert [a.index for a in it.accesses[:4] if tied in a.uses] == [0, 3]
