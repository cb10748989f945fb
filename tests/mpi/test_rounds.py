"""The all-reduce by rounds: right for any ranks, types and lengths, the same bits on every rank, many in flight; and who lets it move."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI
from proof import compare, describe, run, serial
from test_asynchronous import prove

from hpcpar import collectives
from hpcpar.collectives import ALGORITHMS, chosen, table_of
from hpcpar.collectives.check import check
from hpcpar.collectives.table import Move, Table
from hpcpar.comm import progress
from hpcpar.comm.pending import Overdue, Pending
from hpcpar.comm.rounds import Rounds
from hpcpar.comm.world import World
from hpcpar.errors import PlanError

SIZES = (1, 2, 3, 4, 5, 8)
NAMES = ("auto", *ALGORITHMS)


def drawn(seed: int, rank: int, n: int, dtype: str = "float64") -> np.ndarray:
    """Numbers of very different magnitudes: another order of additions has other bits."""
    rng = np.random.Generator(np.random.Philox(key=[seed, rank]))
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(dtype)


def same_everywhere(world: World, array: np.ndarray) -> bool:
    found = world.comm.allgather(array.tobytes())
    return all(f == found[0] for f in found)


def pretend_nodes(world: World) -> None:
    """As if ranks 0, 1, 3, 4, 6, ... and 2, 5, ... were on two nodes, the network only slower in name."""
    world.nodes = [int(r % 3 == 2) for r in range(world.size)]


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("name", NAMES)
def test_sums_are_right_and_the_same_bits_everywhere(world: World, name: str, dtype: str) -> None:
    for pretend in (False, True):
        if pretend:
            pretend_nodes(world)
        for n in (0, 1, world.size - 1, 4096, 100_003):
            arrays = [drawn(n, r, n, dtype) for r in range(world.size)]
            got = world.allreduce(arrays[world.rank].copy(), algorithm=name)
            want = np.sum([a.astype("float64") for a in arrays], axis=0)
            scale = np.sum([np.abs(a).astype("float64") for a in arrays], axis=0)
            assert got.dtype == dtype and (np.abs(got - want) <= 4 * world.size * np.finfo(dtype).eps * scale).all()
            assert same_everywhere(world, got)
            if world.size == 2:
                assert np.array_equal(got, arrays[0] + arrays[1]) and np.array_equal(got, world.allreduce(arrays[world.rank].copy()))
            whole = np.arange(n, dtype=dtype) + world.rank  # integers: exact in any order
            assert np.array_equal(world.allreduce(whole, algorithm=name), world.size * np.arange(n) + sum(range(world.size)))


@pytest.mark.mpi(sizes=(2, 3, 4, 5))
def test_many_in_flight_do_not_mix(world: World) -> None:
    names = [*NAMES, "mpi"]
    arrays = [np.arange(1 + 97 * i * i, dtype="float64") * (i + 1) + world.rank for i in range(24)]
    started = [world.allreduce_start(a, algorithm=names[i % len(names)]) for i, a in enumerate(arrays)]
    message = np.full(3000, float(world.rank))  # other messages of the same ranks are on their way too
    got = np.empty(3000)
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    between = [world.receive_start(got, left, 3, "activation"), world.send_start(message, right, 3, "activation")]
    order = np.random.default_rng(world.rank).permutation(len(started))  # each rank waits in an order of its own
    for i in order:
        started[i].wait()
    for p in between:
        p.wait()
    assert (got == left).all() and not world.outstanding
    for i, a in enumerate(arrays):
        assert np.array_equal(a, world.size * np.arange(a.size) * (i + 1) + sum(range(world.size))), i


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("name", NAMES)
def test_groups_sum_apart(world: World, name: str) -> None:
    groups = [("dp", (0, 2)), ("dp", (1, 3)), ("pp", (0, 1, 3))]
    world.split(groups)
    mine = [(axis, ranks) for axis, ranks in groups if world.rank in ranks]
    arrays = [np.full(1000, 10.0**world.rank) for _ in mine]
    started = [world.of(*g).allreduce_start(a, algorithm=name) for g, a in zip(mine, arrays, strict=True)]
    for p in reversed(started):
        p.wait()
    for (_, ranks), a in zip(mine, arrays, strict=True):
        assert (a == sum(10.0**r for r in ranks)).all()


@pytest.mark.mpi(sizes=(2, 3))
def test_one_event_with_the_bytes_of_the_array_and_one_for_the_wait(world: World) -> None:
    seen: list[tuple[str, dict]] = []
    world.record = lambda kind, start, end, **facts: seen.append((kind, facts))
    world.barrier()
    seen.clear()
    if world.rank == 0:
        time.sleep(0.05)
    world.allreduce(np.ones(50_000), algorithm="ring", stage=3)
    kinds = [kind for kind, _ in seen]
    assert kinds.count("collective") == 1 and kinds.count("wait") == len(kinds) - 1
    assert all(f == {"operation": "allreduce", "axis": "world", "bytes": 400_000, "stage": 3} for _, f in seen)
    assert world.rank == 0 or "wait" in kinds


@pytest.mark.mpi(sizes=(2, 4))
def test_a_rank_that_does_not_come_is_waited_for_and_then_named(world: World) -> None:
    world.waiter.timeout_s = 0.3
    array = np.ones(200_000)
    pending = None
    if world.rank == 0:
        pending = world.allreduce_start(array, algorithm="ring")
        with pytest.raises(Overdue, match="allreduce"):
            pending.wait()
    world.comm.Barrier()
    world.waiter.timeout_s = 60.0
    (pending or world.allreduce_start(array, algorithm="ring")).wait()  # it is late, and nothing is lost
    assert (array == world.size).all()


@pytest.mark.mpi(sizes=(4,))
def test_the_nodes_of_a_group_make_its_table(world: World) -> None:
    array = np.ones(1 << 20)
    assert world.nodes == [0] * 4
    assert world._table(array, "sum", "auto") is table_of("halving", (0,) * 4)
    world.nodes = [5, 7, 5, 7]
    assert world._table(array, "sum", "two-level") is table_of("two-level", (0, 1, 0, 1))
    assert world._table(array, "sum", "auto") is None  # across nodes: the MPI's own
    world.split([("dp", (0, 2)), ("dp", (1, 3))])
    near = world.of("dp", (world.rank % 2, world.rank % 2 + 2))
    assert near._table(array, "sum", "two-level") is table_of("two-level", (0, 0))


@pytest.mark.mpi(sizes=(2,))
def test_what_cannot_be_summed_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match='use "mpi" for max'):
        world.allreduce_start(np.ones(3), "max", algorithm="ring")
    with pytest.raises(ValueError, match="not contiguous"):
        world.allreduce_start(np.ones((4, 4))[:, 1], algorithm="ring")
    assert not world.outstanding


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names by which all-reduces were asked for."""
    names: set[str] = set()
    monkeypatch.setattr(collectives, "chosen", lambda name, *facts: names.add(name) or chosen(name, *facts))
    return names


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("name", NAMES)
def test_training_with_each_algorithm(world: World, name: str, asked: set[str]) -> None:
    pretend_nodes(world)
    sync = {"bucket_mb": 0.02, "first_bucket_mb": 0.002, "algorithm": name}
    got = run(describe("gpt-tied", {"dp": world.size, "accumulate": 2, "sync": sync}), world)
    compare(got, serial("gpt-tied", ()), exact=False)
    assert asked == {name}
    everywhere = [got.weights[0][n].tobytes() for n in sorted(got.weights[0])]
    assert all(w == everywhere for w in world.comm.allgather(everywhere))  # replicas stay bit-equal
    if world.size == 2:
        compare(got, run(describe("gpt-tied", {"dp": 2, "accumulate": 2, "sync": {**sync, "algorithm": "mpi"}}), world), exact=True)


@pytest.mark.mpi(sizes=(3,))
def test_replicated_stages_with_an_algorithm(world: World, asked: set[str]) -> None:
    plan = {"pp": 2, "replicas": [2, 1], "schedule": "pipedream", "sync": {"algorithm": "ring"}}
    prove(world, "gpt-untied", plan, {"clip": 0.0})
    assert world.rank == 2 or asked == {"ring"}


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("name", ("mpi", "ring", "doubling"))
def test_training_with_a_progress_thread(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(progress, "PAUSE_S", 0.0)  # it looks all the time: every race that can be is tried
    pp = world.size // 2
    sync = {"bucket_mb": 0.01, "first_bucket_mb": 0.002, "algorithm": name, "progress": "thread"}
    try:
        got = run(describe("llama-tied", {"dp": 2, "pp": pp, "microbatches": 3, "sync": sync}), world)
        assert world.thread is not None
        world.thread.check()
    finally:
        if world.thread:
            world.thread.stop()
    compare(got, serial("llama-tied", (("microbatches", 3),)), exact=False)
    assert not world.outstanding


def moves_alone(world: World, name: str, seconds: float) -> bool:
    """Whether an all-reduce of 8 MB ends within some seconds although its ranks make no call."""
    array = np.full(1_000_000, 1.0 + world.rank)
    world.comm.Barrier()
    pending = world.allreduce_start(array, algorithm=name)
    until = time.perf_counter() + seconds
    while world.outstanding and time.perf_counter() < until:
        time.sleep(1e-3)
    alone = not world.outstanding
    world.comm.Barrier() if alone else None
    pending.wait()
    assert (array == sum(1.0 + r for r in range(world.size))).all()
    return alone


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("name", ("ring", "two-level"))
def test_a_thread_moves_what_nobody_tests(world: World, name: str) -> None:
    assert not moves_alone(world, name, 0.3)  # the rounds move by calls only
    world.progress_by_thread()
    assert world.thread is not None
    assert all(moves_alone(world, name, 20) for _ in range(5))  # also after it has slept
    world.thread.stop()
    assert not moves_alone(world, name, 0.3)


@pytest.mark.mpi(sizes=(1,))
def test_a_thread_that_fails_is_heard_of(world: World) -> None:
    class Bad:
        def Test(self) -> bool:
            raise OSError("the network is gone")

    world.progress_by_thread()
    assert world.thread is not None
    Pending(Bad(), "send", {}, world.record, world.waiter, world.outstanding, None)
    with pytest.raises((RuntimeError, OSError)) as found:
        world.waiter.until(lambda: False, lambda: "nothing")
    assert "the network is gone" in str(found.value.__cause__)
    world.thread.stop()


@pytest.mark.mpi(sizes=(1,))
def test_a_thread_needs_an_mpi_for_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match=r"MPI_THREAD_SERIALIZED.*calls"):
        progress.require_threads(MPI.THREAD_SERIALIZED)
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_FUNNELED)
    with pytest.raises(PlanError, match="MPI_THREAD_FUNNELED"):
        run(describe("gpt-tied", {"sync": {"progress": "thread"}}), world)
    assert world.thread is None


@pytest.mark.mpi(sizes=(3, 4))
def test_a_table_by_hand(world: World) -> None:
    """Several messages to be added in one round, in the order of the table."""
    last = world.size - 1
    into = [Move(r, last, 0, 2, True) for r in range(last)]
    back = [Move(last, r, 0, 2, False) for r in range(last)]
    table = Table(world.size, 2, (tuple(into), tuple(back)))
    check(table)
    arrays = [drawn(9, r, 1001) for r in range(world.size)]
    want = arrays[last].copy()
    for a in arrays[:last]:
        want += a
    mine = arrays[world.rank].copy()
    request = Rounds(world.comm, world.rank, table, mine, 1)
    world.waiter.until(request.Test, lambda: "a table by hand")
    assert np.array_equal(mine, want)


@pytest.mark.mpi(sizes=(1,))
def test_one_rank_has_no_rounds(world: World) -> None:
    for name in ALGORITHMS:
        assert not table_of(name, (0,)).rounds
    assert world.allreduce_start(np.ones(5), algorithm="ring").test()
