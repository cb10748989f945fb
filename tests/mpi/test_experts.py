"""Mixtures of experts that every rank holds whole: pipelines exactly, data parallelism and microbatches to 1e-12, for every gate."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from proof import compare, describe, run, serial
from styles_of_experts import STYLES

from hpcpar.comm.world import World
from hpcpar.errors import Aborted, PlanError
from hpcpar.run import agreement
from hpcpar.run.evaluate import evaluate
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session


def prove(world, style, plan, serial_plan=(), exact=True, train=()):
    got = run(describe(style, plan, dict(train)), world)
    want = serial(style, tuple(serial_plan), tuple(train))
    compare(got, want, exact)
    return got


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize("style", STYLES)
def test_microbatches_change_nothing(world, style):
    """Losses, auxiliary losses and gradients are means over the groups of the whole batch."""
    got = prove(world, style, {"accumulate": 2, "microbatches": 2}, exact=False)
    gate = STYLES[style]["moe"]["gate"]
    assert all(a > 0 for a in got.auxiliary) == (gate not in ("hash", "balanced", "expert-choice", "base"))


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize("style", STYLES)
def test_recompute_uses_the_routing_of_the_forward(world, style, monkeypatch):
    from hpcpar.nn import router

    want = serial(style, (("microbatches", 2),))
    calls, route = [], router.route
    monkeypatch.setattr(router, "route", lambda h, w, at, name: calls.append((at.step, at.first, name)) or route(h, w, at, name))
    compare(run(describe(style, {"microbatches": 2, "recompute": "full"}), world), want, exact=True)
    assert len(calls) == len(set(calls)) == 5 * 2 * (4 // STYLES[style]["moe"]["every"])


@pytest.mark.mpi(sizes=(1,))
def test_the_selection_bias_moves_by_its_rate_and_a_skipped_step_leaves_it(world):
    style = "experts-sigmoid-bias"
    got = serial(style, ())
    bias = got.weights[0]["blocks.1.moe.router.bias"]
    steps = bias / 0.01
    assert bias.any() and np.abs(steps - np.round(steps)).max() < 1e-9 and np.abs(steps).max() <= 5
    want = np.zeros(6)
    for named in got.gradients:
        want -= 0.01 * np.sign(named[0]["blocks.1.moe.router.bias"])
    assert np.abs(bias - want).max() < 1e-15
    masked = run(_all_masked(style), world)
    assert not masked.weights[0]["blocks.1.moe.router.bias"].any()


def _all_masked(style):
    from msgspec.structs import replace

    cfg = describe(style, {})
    return replace(cfg, data=replace(cfg.data, ignore=tuple(range(256))))


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("style", STYLES)
def test_pipeline_is_the_serial_model_exactly(world, style):
    prove(world, style, {"pp": 2, "microbatches": 3}, [("microbatches", 3)])


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("style", STYLES)
def test_data_parallel(world, style):
    prove(world, style, {"dp": world.size, "microbatches": 2, "sync": {"bucket_mb": 0.01}}, exact=False)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("schedule", ("1f1b", "zb-h1", "dualpipe-v"))
@pytest.mark.parametrize("style", ("experts-gshard", "experts-sigmoid-bias", "experts-llama"))
def test_data_and_pipeline(world, style, schedule):
    recompute = "full" if schedule == "1f1b" else "none"
    more = {"chunks": 2} if schedule == "dualpipe-v" else {}
    prove(world, style, {"dp": 2, "pp": 2, "microbatches": 4, "schedule": schedule, "recompute": recompute, **more}, exact=False)


@pytest.mark.mpi(sizes=(2,))
def test_held_out_samples_are_routed_in_the_same_groups(world):
    """Seven held-out samples in groups of two: the last group is filled up."""
    found = []
    for at, plan in ((world, {"dp": 2}), (World(MPI.COMM_SELF.Dup()), {})):
        cfg = describe("experts-random", plan)
        found.append(evaluate(Session(cfg, at, Recorder()).trainer, 7))
    assert found[0][1] == found[1][1] > 0 and abs(found[0][0] - found[1][0]) < 1e-12


@pytest.mark.mpi(sizes=(2,))
def test_a_microbatch_that_cuts_a_group_is_refused(world):
    with pytest.raises(PlanError, match=r"microbatch of 1 samples .* model.moe.group = 2"):
        run(describe("experts-random", {"dp": 2, "microbatches": 12}), world)


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("style", ("experts-gshard", "experts-sigmoid-bias"))
def test_an_asynchronous_pipeline_is_its_update_rule(world, style):
    from oracle import Oracle

    cfg = describe(style, {"pp": 2, "schedule": "pipedream-2bw", "microbatches": 3}, {"steps": 6, "batch": 6, "clip": 0.0})
    got, want = run(cfg, world), Oracle(cfg).run([6])
    for s, named in got.weights.items():
        for name, w in named.items():
            assert np.array_equal(w, want.weights[s][name]), name
    assert got.norms == want.norms


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("zero", (1, 2, 3))
@pytest.mark.parametrize("style", STYLES)
def test_shards(world, style, zero):
    """Arrays of all experts of a block are cut anywhere; a routing is of whole weights."""
    prove(world, style, {"dp": world.size, "microbatches": 2, "zero": zero, "sync": {"bucket_mb": 0.01}}, exact=False)


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("style", ("experts-gshard", "experts-sigmoid-bias"))
def test_a_stage_that_sleeps_routes_nothing(world, style):
    """Every message and update of a schedule without the arithmetic: nothing is counted, and the selection bias stays."""
    times = {"F": 1e-4, "I": 1e-4, "W": 1e-4}
    got = run(describe(style, {"pp": 2, "microbatches": 3}, {"steps": 2, "emulate": times}), world)
    assert got.auxiliary == [0.0, 0.0]
    biases = [w for named in got.weights.values() for name, w in named.items() if name.endswith("router.bias")]
    assert len(biases) == (style == "experts-sigmoid-bias") and not any(b.any() for b in biases)


@pytest.mark.mpi(sizes=(2,))
def test_a_selection_bias_that_drifts_is_found(world):
    """Selection biases, which no optimizer moves, are compared with the weights of other replicas."""
    trainer = Session(describe("experts-sigmoid-bias", {"dp": 2, "microbatches": 2}), world, Recorder()).trainer
    trainer.step()
    agreement.check(trainer)
    (part,) = trainer.parts.values()
    part.weights_by_name()["blocks.3.moe.router.bias"][2] += world.rank * 1e-9
    with pytest.raises((agreement.Diverged, Aborted), match=r"blocks\.3\.moe\.router\.bias"):
        agreement.check(trainer)
