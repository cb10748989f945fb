"""Offload against the unlimited run: the same bits under a limit that the model passes three times, and the very moves of the plan."""

from __future__ import annotations

import math
import re
import time
import weakref
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from proof import compare, describe, run, serial

from hpcpar.comm.world import World
from hpcpar.errors import PlanError
from hpcpar.run import feasible, offload
from hpcpar.run.evaluate import evaluate
from hpcpar.run.feasible import microbatch_size
from hpcpar.run.program import program_of
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

ALL = {"parameters": True, "optimizer": True, "activations": True}
KINDS = {"all": ALL, "none": {}, **{k: {k: True} for k in ALL}}


def needed(
    style: str, plan: dict[str, Any], kinds: dict[str, bool], train: dict[str, Any] | None = None, world: World | None = None
) -> float:
    """The device_mb that a refusal names."""
    cfg = describe(style, {**plan, "offload": {**kinds, "device_mb": 1e-3}}, train)
    with pytest.raises(PlanError, match=r"plan.offload.device_mb = 0.001, but .* needs [\d.]+ MB .*; use device_mb >= [\d.]+") as refused:
        Session(cfg, world or World(MPI.COMM_SELF.Dup()), Recorder())
    found = re.search(r"device_mb >= ([\d.]+)", str(refused.value))
    assert found
    return float(found[1])


def session(style: str, plan: dict[str, Any], world: World, train: dict[str, Any] | None = None) -> Session:
    return Session(describe(style, plan, train), world, Recorder())


def traffic(s: Session) -> Any:
    return next(iter(s.trainer.parts.values())).traffic


PLANS = {"1": {}, "3": {"microbatches": 3}, "2x2": {"recompute": "full", "microbatches": 2, "accumulate": 2}}
CASES = [(style, plan, "all") for style in ("gpt-tied", "llama-untied", "gpt-dropout") for plan in PLANS]
CASES += [("gpt-tied", plan, kinds) for plan in ("3", "2x2") for kinds in KINDS if kinds != "all"]


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize(("style", "plan", "kinds"), CASES)
def test_the_bits_of_the_unlimited_run_at_the_limit_that_a_refusal_names(world, style, plan, kinds):
    least = needed(style, PLANS[plan], KINDS[kinds])
    got = run(describe(style, {**PLANS[plan], "offload": {**KINDS[kinds], "device_mb": least}}), world)
    compare(got, serial(style, tuple(PLANS[plan].items())), exact=True)


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize(
    ("style", "plan", "kinds"),
    [
        ("deep-tied", {"microbatches": 4}, "all"),
        ("deep-untied", {}, "all"),
        ("deep-untied", {"microbatches": 8, "schedule": "gpipe"}, "activations"),
    ],
)
def test_a_model_three_times_the_pool(world, style, plan, kinds):
    """What the unlimited run holds of parameters, gradients, optimizer state and activations is at least three times device_mb."""
    free = session(style, plan, World(MPI.COMM_SELF.Dup()))
    list(free.trainer.until(1))
    held = sum(free.trainer.parts[0].held_bytes().values()) + free.recorder.peaks["stash"]
    mb = needed(style, plan, KINDS[kinds])
    assert held >= 3 * mb * 1e6
    compare(
        run(describe(style, {**plan, "offload": {**KINDS[kinds], "device_mb": mb}}), world), serial(style, tuple(plan.items())), exact=True
    )


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize("more", [1.0, 1.3, 10.0])
@pytest.mark.parametrize("kinds", KINDS)
def test_the_moves_are_the_plans_and_the_device_holds_what_it_says(world, kinds, more):
    events: list[tuple[str, dict[str, Any]]] = []
    world.record = lambda kind, start, end, **facts: events.append((kind, facts))
    plan = {"microbatches": 3}
    s = session("gpt-tied", {**plan, "offload": {**KINDS[kinds], "device_mb": more * needed("gpt-tied", plan, KINDS[kinds])}}, world)
    t, steps = traffic(s), 3
    for _ in s.trainer.until(steps):
        pass
    copies = [(f["operation"], f["stage"], f["microbatch"], f["bytes"]) for kind, f in events if kind == "copy"]
    started = [("to_device", b.stage, b.microbatch, t.step.sizes[b]) for b in t.step.home]
    assert copies[: len(started)] == started
    moved = {"in": "to_device", "out": "to_host"}
    one = [
        (moved[m.kind], m.buffer.stage, m.buffer.microbatch, t.step.sizes[m.buffer])
        for slot in t.step.moves
        for m in slot
        if m.kind in moved
    ]
    rest = copies[len(started) :]
    for n in range(steps):  # moves out overtake those in that wait for room: by direction they keep the plan's order
        mine = rest[n * len(one) : (n + 1) * len(one)]
        for direction in moved.values():
            assert [c for c in mine if c[0] == direction] == [c for c in one if c[0] == direction]
    assert len(rest) == steps * len(one)
    assert sum(c[3] for c in rest if c[0] == "to_device") == steps * t.step.moved_bytes("in")
    assert sum(c[3] for c in rest if c[0] == "to_host") == steps * t.step.moved_bytes("out")
    if kinds == "none" or more == 10.0:
        assert not one
    peak = s.recorder.peaks["device"]
    assert t.step.working_set <= peak == t.pool.peak <= t.pool.limit
    assert t.pool.used == t.step.fixed + t.step.home_bytes  # between steps


@pytest.mark.mpi(sizes=(1,))
def test_the_accesses_are_the_foreseen_ones(world):
    """The order seen by the layers, written down apart from the plan; another order is no silent fault."""
    plan = {"microbatches": 2, "offload": {**ALL, "device_mb": 100}}
    s = session("gpt-tied", plan, world, {"batch": 4})
    t, seen = traffic(s), []
    begin = t.begin
    t.begin = lambda kind, stage, index, k=-1: (seen.append((kind, stage, index, k)), begin(kind, stage, index, k))
    next(iter(s.trainer.until(1)))
    depth = 7
    order = [x for k in (0, 1) for x in ([("F", 0, i, k) for i in range(depth)] + [("B", 0, i, k) for i in reversed(range(depth))])]
    assert seen == order + [("U", 0, u, -1) for u in range(8)]
    assert seen == [(a.kind, a.stage, a.index, a.microbatch) for a in t.step.accesses]
    with pytest.raises(RuntimeError, match="foreseen"):
        t.begin("B", 0, 3, 0)


@pytest.mark.mpi(sizes=(1,))
def test_memory_that_left_is_free(world):
    """What is counted as gone is gone: nobody holds an array of it."""
    plan = {"microbatches": 3}
    s = session("gpt-tied", {**plan, "offload": {**ALL, "device_mb": needed("gpt-tied", plan, ALL)}}, world)
    t, refs, dead = traffic(s), {}, 0
    keep, end, ended_move = t.keep, t.end, t._ended

    def kept(b, tree):
        keep(b, tree)
        refs[b] = [weakref.ref(a) for a in t.blocks[b].device]

    def ended():
        nonlocal dead
        end()
        for b in list(refs):
            if b not in t.blocks or t.blocks[b].device is None:
                assert all(r() is None for r in refs[b]), f"{b} left the device, and an array of it is alive"
                dead += len(refs.pop(b))

    def left(move, copy):
        ended_move(move, copy)
        del copy
        until = time.monotonic() + 2  # the thread of the copies lets go a moment after it is done
        while any(r() is not None for r in refs.get(move.buffer, ())) and move.kind == "out" and time.monotonic() < until:
            time.sleep(1e-4)
        if move.kind == "out":
            assert all(r() is None for r in refs.get(move.buffer, ())), f"{move.buffer} is counted as gone, and an array of it is alive"

    t.keep, t.end, t._ended = kept, ended, left
    list(s.trainer.until(2))
    assert not refs and dead > 0


@pytest.mark.mpi(sizes=(1,))
def test_a_size_that_was_not_foreseen_is_no_silent_fault(world):
    s = session("gpt-tied", {"offload": {**ALL, "device_mb": 100}}, world)
    t = traffic(s)
    b = next(b for b in t.step.sizes if b.kind == "saved" and t.step.sizes[b])
    t.step.sizes[b] -= 8
    with pytest.raises(RuntimeError, match="planned were"):
        list(s.trainer.until(1))


@pytest.mark.mpi(sizes=(1, 2))
def test_evaluation_between_steps(world):
    plan = {"dp": world.size, "microbatches": 2}
    least = needed("gpt-tied", plan, ALL, world=world)
    found_by = []
    for extra in ({}, {"offload": {**ALL, "device_mb": least}}):
        s = session("gpt-tied", {**plan, **extra}, world)
        found = []
        for _ in range(2):
            found.append(evaluate(s.trainer, 50))
            found.append(next(iter(s.trainer.until(s.trainer.steps + 1))).loss)
        found_by.append([*found, evaluate(s.trainer, 7)])
    assert found_by[0] == found_by[1]


@pytest.mark.mpi(sizes=(1,))
def test_a_skipped_step_changes_nothing(world):
    plan = {"microbatches": 2}
    s = session("gpt-tied", {**plan, "offload": {**ALL, "device_mb": needed("gpt-tied", plan, ALL)}}, world)
    list(s.trainer.until(1))
    part = s.trainer.parts[0]
    before = {n: w.copy() for n, w in part.weights_by_name().items()}
    add = part.gradients.add
    part.gradients.add = lambda *item: (add(*item), part.gradients.flat.fill(math.nan))
    result = next(iter(s.trainer.until(2)))
    assert result.skipped and part.applied == 1
    assert all(np.array_equal(w, before[n]) for n, w in part.weights_by_name().items())


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("kinds", ["all", "parameters", "activations"])
@pytest.mark.parametrize("style", ["gpt-tied", "llama-untied"])
def test_data_parallel(world, style, kinds):
    plan = {"dp": 2, "microbatches": 2, "sync": {"bucket_mb": 0.01, "first_bucket_mb": 0.002}}
    least = needed(style, plan, KINDS[kinds], world=world)
    want = run(describe(style, plan), world)
    compare(run(describe(style, {**plan, "offload": {**KINDS[kinds], "device_mb": least}}), world), want, exact=True)


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("style", ["deep-tied", "deep-llama"])
def test_pipeline(world, style, schedule, recompute):
    plan = {
        "pp": 2,
        "microbatches": 4,
        "schedule": schedule,
        "recompute": recompute,
        **({"chunks": 2} if schedule == "interleaved" else {}),
    }
    least = needed(style, plan, ALL, world=world)
    got = run(describe(style, {**plan, "offload": {**ALL, "device_mb": least}}), world)
    compare(got, serial(style, (("microbatches", 4),)), exact=True)


@pytest.mark.mpi(sizes=(1, 2))
@pytest.mark.parametrize(
    ("plan", "train", "said"),
    [
        ({"schedule": "zb-h1", "microbatches": 4}, {}, "holds what W needs after I"),
        ({"schedule": "pipedream"}, {"clip": 0.0}, "keeps versions"),
        ({"zero": 1}, {}, "plan.zero = 1"),
        ({"sync": {"mode": "local"}}, {}, "local"),
        ({}, {"emulate": {"F": 0.1}}, "sleeps"),
    ],
)
def test_refusals(world, plan, train, said):
    cfg = describe("gpt-untied", {"pp": world.size, **plan, "offload": {"device_mb": 100}}, train)
    with pytest.raises(PlanError, match=said):
        feasible.check_offload(cfg)
        offload.placements(cfg, program_of(cfg), microbatch_size(cfg), world.rank)
