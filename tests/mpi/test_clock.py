"""Clocks that are seconds apart are found so, within what the comparison says it may be wrong."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from hpcpar.comm import clock
from hpcpar.comm.world import World

S = 1_000_000_000


@pytest.mark.mpi(sizes=(1, 2, 3))
def test_planted_offsets_are_found(monkeypatch):
    ahead = 2 * MPI.COMM_WORLD.Get_rank() * S
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: time.perf_counter_ns() + ahead))
    world = World(wait="auto")
    before = time.perf_counter_ns() + ahead
    found = clock.point(world)
    assert abs(found.ahead_ns - ahead) <= found.bound_ns  # of one node, so that the truth is known
    assert before <= found.local_ns <= time.perf_counter_ns() + ahead
    assert (found.bound_ns > 0) == (world.rank > 0)
    world.free()


@pytest.mark.mpi(sizes=(2, 3))
def test_one_clock_of_a_node_is_none_ahead():
    world = World(wait="auto")
    found = clock.point(world)
    assert (found.ahead_ns, found.bound_ns) == (0, 0)
    world.free()
