"""Reduce-scatter, all-gather and all-to-all with uneven counts: adjoint pairs, <Ax, y> = <x, A'y>, on any number of ranks."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hpcpar.comm.pending import Overdue
from hpcpar.comm.world import World
from hpcpar.layout import cut

SIZES = (1, 2, 3, 4, 8)


def counts(n: int, parts: int) -> list[int]:
    return [cut(n, parts, i).stop - cut(n, parts, i).start for i in range(parts)]


def drawn(seed: int, rank: int, n: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=[seed, rank])).standard_normal(n)


def dot(world: World, a: np.ndarray, b: np.ndarray) -> float:
    return float(world.allreduce(np.array([a @ b]))[0])


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("n", [1, 7, 4096, 100_003])
def test_reduce_scatter_and_allgather_are_adjoint(world: World, n: int) -> None:
    share = counts(n, world.size)
    here = cut(n, world.size, world.rank)
    x, y = drawn(1, world.rank, n), drawn(2, world.rank, share[world.rank])
    piece = np.full(share[world.rank], np.nan)
    world.reduce_scatter_start(x, piece, share).wait()
    assert np.allclose(piece, sum(drawn(1, r, n)[here] for r in range(world.size)), rtol=1e-14, atol=1e-14)
    whole = np.full(n, np.nan)
    whole[here] = y
    world.allgather_start(whole, share).wait()
    assert np.array_equal(whole, np.concatenate([drawn(2, r, share[r]) for r in range(world.size)]))
    assert dot(world, piece, y) == pytest.approx(dot(world, x, whole), rel=1e-12, abs=1e-10)


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("n", [1, 7, 100_003])
def test_reduce_scatter_in_place(world: World, n: int) -> None:
    """A rank's piece then stands at the beginning, also an empty one."""
    share = counts(n, world.size)
    start = sum(share[: world.rank])
    x, piece = drawn(5, world.rank, n), np.full(share[world.rank], np.nan)
    world.reduce_scatter_start(x.copy(), piece, share).wait()
    if share[0] > share[-1]:
        with pytest.raises(ValueError, match="ascend"):
            world.reduce_scatter_start(x, None, share[::-1])
    world.reduce_scatter_start(x, None, share).wait()
    assert np.array_equal(x[: share[world.rank]], piece)
    assert np.allclose(piece, sum(drawn(5, r, n)[start : start + len(piece)] for r in range(world.size)), rtol=1e-14, atol=1e-14)


@pytest.mark.mpi(sizes=SIZES)
def test_alltoall_is_its_own_adjoint_with_the_counts_exchanged(world: World) -> None:
    to = [[(3 * i + 5 * j) % 7 for j in range(world.size)] for i in range(world.size)]  # some pairs exchange nothing
    send, receive = to[world.rank], [to[i][world.rank] for i in range(world.size)]
    x, y = drawn(3, world.rank, sum(send)), drawn(4, world.rank, sum(receive))
    there, back = np.full(sum(receive), np.nan), np.full(sum(send), np.nan)
    world.alltoall_start(x, send, there, receive).wait()
    world.alltoall_start(y, receive, back, send).wait()
    assert dot(world, there, y) == pytest.approx(dot(world, x, back), rel=1e-12, abs=1e-10)


@pytest.mark.mpi(sizes=(2,))
def test_a_collective_that_another_rank_leaves_out_ends_with_a_name(world: World) -> None:
    """Not with a hang: the wait says what it waited for."""
    if world.rank:
        time.sleep(1.0)
    pending = world.allgather_start(np.zeros(2), [1, 1], stage=3)
    if not world.rank:
        world.waiter.timeout_s = 0.2
        with pytest.raises(Overdue, match=r"collective allgather of stage 3 \(16 bytes, axis world\)"):
            pending.wait()
        world.waiter.timeout_s = 60.0
    pending.wait()
