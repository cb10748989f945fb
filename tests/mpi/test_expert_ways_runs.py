"""Whole runs by every way of rows to their experts: the bits of the plain way, under recompute, split backwards, a thread, real traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from proof import compare, describe, run, serial
from styles_of_experts import STYLES
from test_expert_runs import SYNC

import hpcpar.trace
from hpcpar.analyse.steps import training
from hpcpar.comm.world import World
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import train
from hpcpar.trace.schema import Axis, Kind, Operation

WAYS = {
    "pairwise": {"exchange": "pairwise"},
    "two-level": {"exchange": "two-level", "overlap": 2},
    "fixed": {"counts": "fixed", "overlap": 3},
    "fixed two-level": {"counts": "fixed", "exchange": "two-level"},
}
assert STYLES["experts-switch"]["moe"]["dropout"] and STYLES["experts-switch"]["moe"]["capacity"]


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("name", WAYS)
def test_the_bits_of_the_plain_way(world: World, name: str) -> None:
    world.nodes = [r % 2 for r in range(world.size)]  # as if neighbours were on two nodes
    cut: dict[str, Any] = {"schedule": "zb-h1", "pp": 2} if world.size == 4 else {"recompute": "full"}
    progress = "thread" if name == "two-level" else "calls"
    plan = {"dp": 2, "ep": 2, "microbatches": 3, **cut, "sync": {**SYNC, "progress": progress}}
    try:
        got = run(describe("experts-switch", {**plan, "experts": WAYS[name]}), world)
    finally:
        if world.thread:
            world.thread.stop()
            world.thread.check()
    compare(got, serial("experts-switch", ()), exact=False)
    plain = run(describe("experts-switch", {**plan, "sync": SYNC}), world)
    assert got.losses == plain.losses and got.norms == plain.norms
    assert all(np.array_equal(a, plain.weights[s][n]) for s, named in got.weights.items() for n, a in named.items())


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("name", ("pairwise", "fixed"))
def test_the_trace_has_the_bytes_of_each_pair(world: World, shared_path: Any, name: str) -> None:
    plan = {"dp": 2, "ep": 2, "microbatches": 2, "experts": WAYS[name]}
    train(describe("experts-switch", plan, {"steps": 2}), shared_path, False, world, Recorder(), dict, {})
    world.barrier()
    trace = hpcpar.trace.open(shared_path)
    pairs, events = trace.pairs(world.rank), trace.events(world.rank)
    assert set(pairs["step"]) == {1, 2} and set(pairs["block"]) == {1, 3} and set(pairs["axis"]) == {Axis.EP}
    assert set(pairs["operation"]) == {Operation.DISPATCH, Operation.COMBINE} and set(pairs["peer"]) == {0, 1}
    events = training(events)
    for operation in (Operation.DISPATCH, Operation.COMBINE):
        mine = pairs[pairs["operation"] == operation]
        kind = Kind.SEND if name == "pairwise" else Kind.COLLECTIVE
        far = mine[mine["peer"] != world.rank] if name == "pairwise" else mine
        sent = events[(events["kind"] == kind) & (events["operation"] == operation)]
        assert sent["bytes"].sum() == far["bytes"].sum() > 0
