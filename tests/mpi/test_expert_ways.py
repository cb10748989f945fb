"""Every way of rows to their experts against the whole layer on one process: the same bits as the plain way, messages and bytes counted."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from test_expert_exchange import SAMPLES, D, E, Layer, T, near

from hpcpar.comm import progress
from hpcpar.comm.pending import Overdue, Pending
from hpcpar.comm.several import Messages
from hpcpar.comm.world import World
from hpcpar.config import Ways, build
from hpcpar.errors import Aborted
from hpcpar.forms import ways as forms
from hpcpar.forms.expert import held
from hpcpar.nn import moe
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.gates.capacity import limit
from hpcpar.parallel.expert import Exchange
from hpcpar.parallel.expert.exchange import CARRIERS

SIZES = (1, 2, 3, 4, 8)
LAYOUTS = {1: [[0]], 2: [[0, 1]], 3: [[0, 0, 1]], 4: [[0, 0, 1, 1], [3, 7, 7, 3]], 8: [[0, 0, 0, 0, 1, 1, 1, 1], [2, 0, 1, 1, 2, 2, 2, 0]]}
DROPS = {"policy": "floor", "factor": 0.9}
NONE = {"policy": "floor", "factor": 0.1}
ONE = {"policy": "floor", "factor": 2.5}  # a token an expert and group
EVERY = [Ways(counts=c, exchange=x) for c, x in product(("exchanged", "fixed"), ("mpi", "pairwise", "two-level"))]
AT = Microbatch(Frame.of(build({"model": {"layers": 1}}).model, 1, np, "float64"), 1, 1)


class Spy:
    """What one rank recorded: events as (kind, operation, axis, peer, bytes), and pairs."""

    def __init__(self, world: World):
        self.events: list[tuple[str, str, str, int, int]] = []
        self.pairs: list[tuple[int, str, str, list[int], list[int]]] = []
        world.record, world.pairs = self._record, self._pairs

    def _record(self, kind: str, start: int, end: int, **f: Any) -> None:
        self.events.append((kind, f["operation"], f["axis"], f.get("peer", -1), f["bytes"]))

    def _pairs(self, block: int, operation: str, axis: str, peers: Any, sizes: Any) -> None:
        self.pairs.append((block, operation, axis, list(peers), list(sizes)))

    def messages(self, kind: str, operation: str, node: bool) -> Counter[int]:
        """Bytes by peer."""
        found: Counter[int] = Counter()
        for k, o, axis, peer, n in self.events:
            if (k, o, axis == "node") == (kind, operation, node):
                found[peer] += n
        return found


def capacity_rows(fields: dict[str, Any]) -> int | None:
    """Rows an expert and microbatch of one rank, of groups of one sample."""
    if "capacity" not in fields:
        return None
    made = build({"model": {"moe": fields}}).model.moe
    assert made and made.capacity
    return SAMPLES * limit(made.capacity, T, made.experts, made.k)


def prove(world: World, fields: dict[str, Any], every: list[Ways], tilt: int = -1) -> None:
    """The layer by each way: to rounding the serial one, and the bits of the plain way; what is sent is what the forms say."""
    fields = {"experts": E, **fields}
    whole = Layer(fields, world.size, tilt=tilt)
    y, dh, named = whole.run()
    plain: Any = None
    for ways in [Ways(), *every]:
        part = Layer(fields, world.size, world.rank, Exchange(world, ways), tilt)
        spy = Spy(world)
        y2, dh2, named2 = found = part.run()
        assert not world.outstanding
        Spy(world)
        count(world, spy, moe.routing_of(moe.forward(part.h, part.w, part.at, "blocks.0")[1]).counts, ways, fields)
        near(y2, y[part.rows], f"y {ways}")
        near(dh2, dh[part.rows], f"dh {ways}")
        for name, g in named.items():
            if ".experts." in name:
                near(named2[name], g[part.held], f"{name} {ways}")
            else:
                near(world.allreduce(named2[name].copy()), g, f"{name} {ways}")
        plain = plain or found
        assert np.array_equal(y2, plain[0]) and np.array_equal(dh2, plain[1]), ways
        assert all(np.array_equal(named2[n], g) for n, g in plain[2].items()), ways


def count(world: World, spy: Spy, routed: tuple[int, ...], ways: Ways, fields: dict[str, Any]) -> None:
    """Bytes and messages of two forwards (as recompute has them) and a backward."""
    table = np.array(world.comm.allgather(routed))  # by source and expert
    assert table.any() == (fields.get("capacity") != NONE)
    experts, most = fields["experts"], capacity_rows(fields) if ways.counts == "fixed" else None
    if most is not None:
        table[...] = 1 + most
        assert table[0].sum() == forms.fixed_rows(experts, most)
    holders = [held(experts, world.size, r) for r in range(world.size)]
    rows = np.stack([table[:, some.start : some.stop].sum(axis=1) for some in holders], axis=1)  # by source and holder
    there, back, me = 3 * D + 2 * bool(fields.get("dropout")), 3 * D, world.rank
    assert sum(n for *_, peers, sizes in spy.pairs for n in sizes) == 8 * (there * rows[me].sum() + back * rows[:, me].sum())
    for operation, given, width in (("dispatch", rows, there), ("combine", rows.T, back)):
        noted = np.sum([sizes for _, o, *_, sizes in spy.pairs if o == operation], axis=0)
        assert np.array_equal(noted, 8 * width * given[me])
    assert {(block, axis, tuple(peers)) for block, _, axis, peers, _ in spy.pairs} == {(0, "world", world.ranks)}
    operations = {operation for kind, operation, *_ in spy.events if kind != "wait"}
    assert ("counts" in operations) == (ways.counts == "exchanged" and (ways.exchange == "mpi" or world.size > 1))
    if ways.exchange == "mpi":
        assert {kind for kind, *_ in spy.events} <= {"collective", "wait"}
        for operation, given, width in (("dispatch", rows, there), ("combine", rows.T, back)):
            assert sum(n for k, o, *_, n in spy.events if (k, o) == ("collective", operation)) == 8 * width * given[me].sum()
        return
    assert {kind for kind, *_ in spy.events} <= {"send", "receive", "wait"}
    every = [("dispatch", 8 * there * rows, False), ("combine", 8 * back * rows, True)]
    if ways.counts == "exchanged":
        # once: recompute exchanges no counts
        every.append(("counts", np.tile([8 * len(some) for some in holders], (world.size, 1)), False))
    for operation, given, way_back in every:
        inside, across = forms.hops(ways.exchange, world.nodes, given.tolist(), way_back)
        assert (operation == "counts") <= (ways.exchange != "pairwise" or sum(across.values()) == given.sum() - np.trace(given))
        for node, hops in ((True, inside), (False, across)):
            assert spy.messages("send", operation, node) == {b: n for (a, b), n in hops.items() if a == me}
            assert spy.messages("receive", operation, node) == {a: n for (a, b), n in hops.items() if b == me}


@pytest.mark.mpi(sizes=SIZES)
def test_every_way_is_the_serial_layer(world: World) -> None:
    for nodes in LAYOUTS[world.size]:
        world.nodes = nodes
        prove(world, {"experts": max(E, world.size + 3), "gate": "switch", "k": 1, "dropout": 0.2, "capacity": ONE}, EVERY)


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
def test_parts_one_after_another(world: World) -> None:
    """Their sums are those of no parts, bit for bit."""
    world.nodes = LAYOUTS[world.size][-1]
    fewest = E // world.size
    every = [Ways(counts=w.counts, exchange=w.exchange, overlap=n) for w, n in zip(EVERY * 2, (2, fewest) * 6, strict=True) if n <= fewest]
    prove(world, {"gate": "topk", "k": 2, "dropout": 0.1, "shared": 1, "capacity": DROPS}, every)


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
@pytest.mark.parametrize("tilt", (0, E - 1))
def test_all_tokens_to_one_expert(world: World, tilt: int) -> None:
    world.nodes = LAYOUTS[world.size][-1]
    few = [Ways(exchange="pairwise"), Ways(exchange="two-level", overlap=min(2, E // world.size))]
    prove(world, {"gate": "switch", "k": 1}, few, tilt)
    prove(
        world,
        {"gate": "switch", "k": 1, "capacity": {"policy": "floor", "factor": 2.0}},
        [Ways(counts="fixed", exchange="two-level")],
        tilt,
    )


@pytest.mark.mpi(sizes=(1, 2, 3))
def test_no_token_at_all(world: World) -> None:
    """Capacity 0: blocks are the rows that say so."""
    world.nodes = LAYOUTS[world.size][-1]
    prove(world, {"gate": "topk", "k": 2, "capacity": NONE}, EVERY)


@pytest.mark.mpi(sizes=SIZES)
def test_there_and_back_are_adjoint(world: World) -> None:
    """<dispatch x, y> = <x, back y> part by part, with counts of each rank's own, zeros and a rank with nothing among them."""
    for nodes, ways, overlap in product(LAYOUTS[world.size], EVERY, (1, 2)):
        world.nodes = nodes
        experts = 2 * world.size + 1
        draw = np.random.default_rng(world.rank)
        counts = tuple(int(n) for n in draw.integers(0, 4, experts) * draw.integers(0, 2, experts) * (world.rank != 1))
        move = Exchange(world, Ways(counts=ways.counts, exchange=ways.exchange, overlap=overlap))
        way = move.plan(counts, 3, AT, "blocks.0.moe")
        x = draw.normal(size=(sum(counts), 2, 3))
        going = move.start(x, way)
        there = [move.finish(going, way, k) for k in range(overlap)]
        assert [len(rows) for rows in there] == [sum(move.counts(way, k)) for k in range(overlap)]
        y = [draw.normal(size=rows.shape) for rows in there]
        back = move.finish_back([move.start_back(rows, way, k) for k, rows in enumerate(y)], way)
        assert back.shape == x.shape
        left, right = world.allreduce(np.array([sum((a * b).sum() for a, b in zip(there, y, strict=True)), (x * back).sum()]))
        assert left == pytest.approx(right, rel=1e-12, abs=1e-12)
        home = move.finish_back([move.start_back(rows, way, k) for k, rows in enumerate(there)], way)
        assert np.array_equal(home, x), "there and back is the identity"


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("exchange", ("mpi", "pairwise", "two-level"))
def test_the_next_part_is_on_its_way_while_one_is_computed(world: World, exchange: Any) -> None:
    """What is posted when: one part ahead, and results leave before the next part is computed; forward and backward."""
    world.nodes = LAYOUTS[world.size][-1]
    move = Exchange(world, Ways(exchange=exchange, overlap=3))
    counts = tuple(2 + (e + world.rank) % 3 for e in range(3 * world.size))
    way = move.plan(counts, None, AT, "blocks.0.moe")
    posted: list[tuple[str, int]] = []
    begin = move._carrier.start

    def start(send: Any, receive: Any, sizes: Any, operation: str, back: bool) -> Any:
        posted.append((operation, sum(o == operation for o, _ in posted)))
        return begin(send, receive, sizes, operation, back)

    move._carrier.start = start  # type: ignore[method-assign]
    going, coming = move.start(np.ones((sum(counts), 5)), way), []
    for k in range(3):
        rows = move.finish(going, way, k)
        posted.append(("experts", k))
        coming.append(move.start_back(rows, way, k))
    assert np.array_equal(move.finish_back(coming, way), np.ones((sum(counts), 5)))
    steps = [("dispatch", 0), ("dispatch", 1), ("experts", 0), ("combine", 0), ("dispatch", 2), ("experts", 1), ("combine", 1)]
    assert posted == [*steps, ("experts", 2), ("combine", 2)]


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("thread", (False, True))
@pytest.mark.parametrize("exchange", ("pairwise", "two-level"))
def test_many_in_flight_do_not_mix(world: World, monkeypatch: pytest.MonkeyPatch, exchange: Any, thread: bool) -> None:
    """Exchanges of several routings, waited for in an order of each rank's own; in the trace, a pair's n-th send is its n-th receive."""
    world.nodes = LAYOUTS[world.size][-1]
    if thread:
        monkeypatch.setattr(progress, "PAUSE_S", 0.0)  # it looks all the time: every race that can be is tried
        world.progress_by_thread()
    posted: list[tuple[int, tuple[Any, ...], int]] = []

    def record(kind: str, start: int, end: int, **f: Any) -> None:
        if kind in ("send", "receive"):
            pair = (world.rank, f["peer"]) if kind == "send" else (f["peer"], world.rank)
            posted.append((start, (kind, *pair, f["operation"], f["axis"]), f["bytes"]))

    world.record = record
    try:
        in_any_order(world, Exchange(world, Ways(exchange=exchange)))
    finally:
        if world.thread:
            world.thread.stop()
            world.thread.check()
            world.thread = None
    sizes: dict[tuple[Any, ...], list[int]] = {}
    for _, key, n in sorted(p for part in world.comm.allgather(sorted(posted)) for p in part):
        sizes.setdefault(key, []).append(n)
    assert sizes and all(found == sizes["receive", *key[1:]] for key, found in sizes.items() if key[0] == "send")


def in_any_order(world: World, move: Exchange) -> None:
    sizes = [tuple((i + e + world.rank) % 3 * (1 + i % 4) for e in range(E)) for i in range(9)]
    ways = [move.plan(counts, None, AT, "blocks.0.moe") for counts in sizes]
    rows = [np.full((sum(counts), 3), i + 10.0 * world.rank) for i, counts in enumerate(sizes)]
    going = [move.start(x, way) for x, way in zip(rows, ways, strict=True)]
    order = np.random.default_rng(world.rank).permutation(len(ways))
    found = {i: move.finish(going[i], ways[i], 0) for i in order}
    for i, there in found.items():
        sources = [np.repeat(np.arange(world.size), of) for of in ways[i].known[world.rank].T]
        assert np.array_equal(there[:, 0], i + 10.0 * np.concatenate(sources))
    coming = [move.start_back(found[i], ways[i], 0) for i in range(len(ways))]
    back = {i: move.finish_back([coming[i]], ways[i]) for i in order}
    assert all(np.array_equal(back[i], rows[i]) for i in back) and not world.outstanding


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("exchange", ("mpi", "pairwise", "two-level"))
def test_a_rank_that_does_not_come_is_named_in_time(world: World, exchange: Any) -> None:
    world.nodes = LAYOUTS[world.size][-1]
    move = Exchange(world, Ways(exchange=exchange))
    x, counts, last = np.ones((E, 2)), (1,) * E, world.size - 1
    way = move.plan(counts, None, AT, "blocks.0.moe")
    way.settle()
    world.comm.Barrier()
    going = None
    if world.rank != last:
        world.waiter.timeout_s = 0.3
        going = move.start(x, way)
        with pytest.raises(Overdue, match="dispatch" if exchange == "mpi" else r"dispatch .*: receive dispatch with rank \d"):
            going.sent[0][0].wait()
    world.comm.Barrier()
    world.waiter.timeout_s = 60.0
    found = move.finish(going or move.start(x, way), way, 0)  # it is late, and nothing is lost
    assert len(found) == world.size * len(held(E, world.size, world.rank))


@pytest.mark.mpi(sizes=(2,))
def test_an_alarm_ends_the_wait(world: World) -> None:
    move = Exchange(world, Ways(exchange="two-level"))
    way = move.plan((1,) * E, None, AT, "blocks.0.moe")
    way.settle()
    world.comm.Barrier()
    if world.rank == 1:
        world.alarm.ring()
    else:
        going = move.start(np.ones((E, 2)), way)
        with pytest.raises(Aborted):
            move.finish(going, way, 0)
    world.comm.Barrier()


@pytest.mark.mpi(sizes=(1,))
def test_rounds_follow_each_other_and_a_wait_is_one_event(world: World) -> None:
    class Late:
        """A request that is complete after some tests."""

        def __init__(self, tests: int):
            self.tests = tests

        def Test(self) -> bool:
            self.tests -= 1
            return self.tests < 0

    events: list[tuple[str, str, int]] = []
    world.record = lambda kind, start, end, **f: events.append((kind, f["operation"], f["bytes"]))
    begun: list[tuple[int, int]] = []

    def rounds(number: int, count: int) -> Messages:
        for k in range(count):
            begun.append((number, k))
            yield [
                Pending(
                    Late(9 - 8 * number), "send", {"operation": "dispatch", "bytes": k}, world.record, world.waiter, world.outstanding, None
                )
            ]

    first, second = (world.several_start(rounds(n, count), "dispatch", 70 + n) for n, count in enumerate((3, 2)))
    second.wait()
    first.wait()
    assert sorted(begun, key=lambda b: b[::-1]) == begun and len(begun) == 5, "the second begins no round before the first has"
    assert events.count(("wait", "dispatch", 71)) == 1 and not world.outstanding
    assert sorted(e for e in events if e[0] != "wait") == sorted(("send", "dispatch", k) for k in (0, 1, 2, 0, 1))


@pytest.mark.mpi(sizes=(1,))
def test_fixed_needs_a_capacity(world: World) -> None:
    with pytest.raises(ValueError, match="need a capacity"):
        Exchange(world, Ways(counts="fixed")).plan((1, 2), None, AT, "blocks.0.moe")


@pytest.mark.mpi(sizes=(1,))
def test_every_exchange_is_in_its_registry(world: World) -> None:
    assert set(CARRIERS) == set(get_args(get_type_hints(Ways)["exchange"]))
