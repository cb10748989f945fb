"""The parameter server by itself, under load: no push is lost or applied twice, no pull is torn, and whoever fails ends all waits."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hpcpar.comm import window
from hpcpar.comm.window import Window
from hpcpar.errors import Aborted, PlanError
from hpcpar.layout import cut
from hpcpar.parallel.server import READERS, Server, Shard

PUSHES = 100_000  # mailboxes filled, over all workers and owners


class Adding:
    """An update rule that adds."""

    def step(self, w, g, state, segments, t, lr, scale):
        w += scale * g


def serve(world, size, watch=None, dtype="float64"):
    here = cut(size, world.size, world.rank)
    server = Server(world, size, dtype, Shard(here.start, here.stop, Adding(), {}, []), 0, lambda clock: 1.0, None, watch)
    server.weights[...] = 0
    server.start()
    return server


@pytest.mark.mpi(sizes=(2, 3, 4))
def test_a_hundred_thousand_pushes_are_all_counted_once(world):
    """Every worker pushes as fast as it can, and pulls now and then; all sums are of integers, so exact."""
    n, size = world.size, 4 * world.size + 3  # uneven shards
    each = -(-PUSHES // n**2)
    seen = []
    server = serve(world, size, lambda worker, clock, gradient, scale: seen.append((worker, clock)))
    mine, pulled = np.empty(size), np.empty(size)
    for clock in range(1, each + 1):
        mine[:] = 1000 * world.rank + clock  # the same in all places: a torn shard shows
        server.push(clock, mine, 2.0, False)
        if clock % 100 == 0:
            server.pull(pulled)
            for r in range(n):
                assert len(set(pulled[cut(size, n, r)])) == 1
    server.wait(each)
    found = server.pull(pulled)
    world.barrier()
    server.close()
    assert len(seen) == n * each >= PUSHES / n
    for worker in range(n):
        assert [c for w, c in seen if w == worker] == list(range(1, each + 1))
    assert found.versions == [n * each] * n and found.slowest == each
    assert server.shard.applied == n * each
    assert (pulled == 2.0 * sum(1000 * w * each + each * (each + 1) // 2 for w in range(n))).all()


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_no_pull_sees_half_an_update(world, dtype):
    """Shards that take a while to write and to read, all workers at once; what is pulled says itself which updates are in it."""
    n, size, clocks = world.size, 200_001, 60
    server = serve(world, size, dtype=dtype)
    mine, pulled = np.empty(size, dtype), np.empty(size, dtype)
    for clock in range(1, clocks + 1):
        mine[:] = 1
        server.push(clock, mine, 1.0, clock % 2 == 0)
        found = server.pull(pulled)
        for r in range(n):
            assert (pulled[cut(size, n, r)] == found.versions[r]).all(), "versions and weights are of one moment"
        assert clock - 1 - clock % 2 <= found.slowest + clocks and found.slowest <= clock
    server.wait(clocks)
    world.barrier()
    server.close()


@pytest.mark.mpi(sizes=(2,))
def test_a_reader_holds_the_next_update_off(world):
    """So that an owner with much to do starves nobody."""
    server, pulled = serve(world, 6), np.empty(6)
    if world.rank == 0:
        server.window.add(1, READERS, 1)
        server.push(1, np.ones(6), 1.0, False)
        time.sleep(0.05)
        found = [int(server.window.read(owner)[READERS + 3]) for owner in (0, 1)]
        server.pull(pulled)
        half = pulled.tolist()
        server.window.add(1, READERS, -1)
    else:
        server.push(1, np.zeros(6), 1.0, False)
    server.wait(1)
    server.pull(pulled)
    world.barrier()
    server.close()
    assert pulled.tolist() == [1.0] * 6
    if world.rank == 0:
        assert found == [1, 0] and half == [1.0] * 3 + [0.0] * 3, "applied by rank 0 alone"


@pytest.mark.mpi(sizes=(2, 4))
def test_a_skipped_push_changes_nothing_but_the_clock(world):
    server, pulled = serve(world, 9), np.empty(9)
    for clock, scale in ((1, 1.0), (2, None), (3, 0.5)):
        server.push(clock, np.full(9, 4.0), scale, True)
    server.wait(3)
    assert server.pull(pulled).slowest == 3
    world.barrier()
    server.close()
    assert (pulled == 6.0 * world.size).all() and server.shard.applied == 2 * world.size


@pytest.mark.mpi(sizes=(2, 3))
def test_what_is_sent_is_traced(world):
    """A push to each other owner, with the scale and the clock; a pull from each, with the number of updates in it; each wait once."""
    events, n, size = [], world.size, 3 * world.size + 1
    world.record = lambda kind, start, end, **facts: events.append((kind, facts)) if end >= start else None
    server, pulled = serve(world, size), np.empty(size)
    server.push(1, np.ones(size), 1.0, True)
    server.wait(1)
    server.pull(pulled)
    world.barrier()
    server.close()
    others = {r: 8 * (cut(size, n, r).stop - cut(size, n, r).start) for r in range(n) if r != world.rank}

    def found(kind, operation, *keys):
        return sorted(tuple(f.get(k, -1) for k in keys) for k, f in events if (k, f["operation"]) == (kind, operation))

    assert found("send", "push", "peer", "bytes") == [(r, held + 16) for r, held in sorted(others.items())]
    assert found("receive", "pull", "peer", "bytes", "version") == [(r, held, n) for r, held in sorted(others.items())]
    assert {peer for peer, _ in found("receive", "clock", "peer", "bytes")} == set(others)
    assert [len(found("wait", name)) for name in ("push", "clock", "pull")] == [1, 1, 1]
    assert found("update", "push", "peer", "version") == sorted((w, v) for v, w in enumerate(applied_in(events), 1))


def applied_in(events):
    """The workers of the updates, in order."""
    return [facts["peer"] for kind, facts in events if kind == "update"]


@pytest.mark.mpi(sizes=(1,))
def test_an_mpi_without_threads_is_refused(world, monkeypatch):
    monkeypatch.setattr(window.MPI, "Query_thread", lambda: window.MPI.THREAD_SERIALIZED)
    with pytest.raises(PlanError, match=r'"asp".*THREAD_SERIALIZED, not THREAD_MULTIPLE; use'):
        window.require_threads("asp")


@pytest.mark.mpi(sizes=(3,))
def test_fewer_elements_than_owners(world):
    """An owner without elements has clocks all the same."""
    server, pulled = serve(world, 2), np.empty(2)
    server.push(1, np.ones(2), 1.0, True)
    server.wait(1)
    server.pull(pulled)
    world.barrier()
    server.close()
    assert pulled.tolist() == [3.0, 3.0]


@pytest.mark.mpi(sizes=(2, 3))
def test_a_worker_that_waits_hears_of_a_failure(world):
    """Rank 0 fails; the others wait for a clock that it never comes to."""
    server = serve(world, 5)
    server.push(1, np.ones(5), 1.0, True)
    world.comm.Barrier()  # no one rings while another still pushes; MPI's own, which does not listen to the alarm
    if world.rank == 0:
        world.alarm.ring()
    else:
        with pytest.raises(Aborted, match="rank 0 failed"):
            server.wait(2)
    server.stop()
    world.barrier()
    server.close()


@pytest.mark.mpi(sizes=(2,))
def test_an_owner_that_fails_is_heard_of_by_its_rank(world):
    def fails(*_):
        raise ValueError("planted")

    server = serve(world, 5, fails)
    with pytest.raises(ValueError, match="planted"):
        server.push(1, np.ones(5), 1.0, True)
    server.stop()
    world.barrier()
    server.close()


@pytest.mark.mpi(sizes=(2, 3, 4))
def test_words_and_bytes_of_windows_of_unequal_size(world):
    n, me = world.size, world.rank
    mine = Window(world, 3, 8 * (me + 1))
    mine.bytes.view(np.int64)[:] = me
    mine.fence()
    world.barrier()
    for owner in range(n):
        mine.add(owner, 1, 10**me)
        mine.write(owner, 2, 7)
    last = (me + 1) % n
    found = np.empty(last + 1, np.int64)
    mine.get(last, found, 0)
    assert (found == last).all()
    world.barrier()
    mine.put(last, np.array([me + 100]), 8 * last)
    world.barrier()
    mine.progress()
    mine.fence()
    assert mine.words.tolist() == [0, sum(10**r for r in range(n)), 7] == mine.read(me).tolist()
    assert mine.bytes.view(np.int64)[-1] == (me - 1) % n + 100
    assert mine.gather(np.array([1.5, me]), lambda: False).tolist() == [[1.5, r] for r in range(n)]
    world.barrier()
    mine.close()
