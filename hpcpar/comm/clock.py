"""The offset between this rank's clock and rank 0's, by ping-pong (Cristian, Distributed Computing 3 (1989) 146).

    rank 0          .-- t1 --.            offset of r = r's time - rank 0's time
    rank r   t0 ---'          '--- t3     at the middle of the round trip: (t0 + t3)/2 - t1

The round with the shortest trip is the best: its error is at most half the trip. Ranks of one node read the same clock: where their offset
may be none, it is none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.comm.world import World

TAG = 30000
ROUNDS = 8


@dataclass(frozen=True)
class Point:
    """At `local_ns` of this rank's clock it was `ahead_ns` ahead of rank 0's, give or take `bound_ns`."""

    local_ns: int
    ahead_ns: int
    bound_ns: int


def point(world: World) -> Point:
    """Compare this rank's clock with rank 0's; collective: every rank takes part, each in its turn."""
    now = time.perf_counter_ns
    world.barrier()
    out = Point(now(), 0, 0)
    if world.rank == 0:
        for r in range(1, world.size):
            _answer(world, r)
    else:
        out = _ask(world)
    world.barrier()
    return out


def _answer(world: World, rank: int) -> None:
    """Rank 0: tell `rank` that it is its turn, then the time whenever it asks."""
    token, told = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for _ in range(ROUNDS):
        asked = world.comm.Irecv(token, rank, TAG)
        _done(world, world.comm.Isend(told, rank, TAG), rank)  # the turn at first, then the time
        _done(world, asked, rank)
        told[0] = time.perf_counter_ns()
    _done(world, world.comm.Isend(told, rank, TAG), rank)


def _ask(world: World) -> Point:
    """Another rank: wait for its turn, then ask for the time; the best of all rounds."""
    token, told = np.zeros(1, np.int64), np.zeros(1, np.int64)
    best = None
    _done(world, world.comm.Irecv(told, 0, TAG), 0)
    for _ in range(ROUNDS):
        answer = world.comm.Irecv(told, 0, TAG)
        sent = time.perf_counter_ns()
        asked = world.comm.Isend(token, 0, TAG)
        _done(world, answer, 0)
        trip = time.perf_counter_ns() - sent
        _done(world, asked, 0)
        found = Point(sent + trip // 2, sent + trip // 2 - int(told[0]), trip - trip // 2)
        best = found if best is None or found.bound_ns < best.bound_ns else best
    assert best is not None
    if world.nodes[world.rank] == world.nodes[0] and abs(best.ahead_ns) <= best.bound_ns:
        return Point(best.local_ns, 0, 0)
    return best


def _done(world: World, request: Any, peer: int) -> None:
    world.waiter.until(request.Test, lambda: f"rank {peer}, to compare clocks")
