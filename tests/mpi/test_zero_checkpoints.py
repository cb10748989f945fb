"""Checkpoints move between zero 0, 1, 2, 3 and 1, 2, 3 ranks: not a bit changes, and the run goes on as if it had not stopped."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from proof import Ran, compare, describe, host, run, serial

from hpcpar import checkpoint
from hpcpar.comm.world import World
from hpcpar.run import saving
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

SYNC = {"bucket_mb": 0.01, "first_bucket_mb": 0.002}
TOUR = [(0, 1), (1, 3), (2, 2), (3, 3), (3, 1), (0, 3), (3, 2), (1, 2), (2, 3), (1, 1), (2, 1), (0, 2), (3, 3)]  # zero, ranks


def session_of(style, zero, ranks, path, plan=()):
    """A session on the first ranks, gone on from a checkpoint; None on the others."""
    comm = MPI.COMM_WORLD.Split(0 if MPI.COMM_WORLD.Get_rank() < ranks else 1)
    if MPI.COMM_WORLD.Get_rank() >= ranks:
        return None
    plan = {"dp": ranks, "zero": zero, "sync": SYNC, **dict(plan)}
    session = Session(describe(style, plan, {"steps": len(TOUR), "warmup": 2}), World(comm, wait="auto", timeout_s=60.0), Recorder())
    if path:
        saving.restore(session.trainer, path)
    return session


def same_bits(a, b):
    """Every tensor of two checkpoints."""
    one, other = checkpoint.open(a), checkpoint.open(b)
    assert one.kinds() == other.kinds() == ["adamw.m", "adamw.v", "weights"]
    for kind in one.kinds():
        assert one.names(kind) == other.names(kind)
        for name in one.names(kind):
            assert np.array_equal(one.read(kind, name), other.read(kind, name)), (kind, name)
    assert one.fields["applied"] == other.fields["applied"]


@pytest.mark.mpi(sizes=(3,))
@pytest.mark.parametrize("style", ("gpt-tied", "llama-untied"))
def test_a_tour_of_plans(world, shared_path, style):
    """A step under each plan, each gone on from the one before; what is restored is saved again, bit for bit."""
    path, got = None, Ran()
    for step, (zero, ranks) in enumerate(TOUR):
        session = session_of(style, zero, ranks, path)
        if session:
            trainer = session.trainer
            assert trainer.steps == step
            if path:
                again = saving.save(trainer, shared_path / f"again{step}", 1)
                if world.rank == 0:
                    same_bits(path, again)
            (result,) = trainer.until(step + 1)
            got.losses.append(result.loss)
            got.norms.append(result.grad_norm)
            path = saving.save(trainer, shared_path / f"{step}", 1)
            weights = {0: {n: host(w) for n, w in trainer.parts[0].weights_by_name().items()}}
        path = MPI.COMM_WORLD.bcast(path)
    want = serial(style, (), (("steps", len(TOUR)), ("warmup", 2)))
    if session:  # the last plan is on all ranks
        assert world.rank == 0 or len(got.losses) < len(TOUR)
        got.weights = weights
        assert np.allclose(got.losses[-1], want.losses[-1], rtol=1e-12, atol=0)
        if world.rank == 0:
            got.gradients = [{0: named} for named in ([want.everywhere(s) for s in range(len(TOUR))])]
            compare(got, want, exact=False)


@pytest.mark.mpi(sizes=(4,))
def test_between_pipelines(world, shared_path):
    """Zero 1 over dp x pp, over two copies of a stage, and zero 3 without a pipeline; the tied weight is written once."""
    first, plans = (
        None,
        [{"pp": 2, "dp": 2, "zero": 1}, {"dp": 4, "zero": 3}, {"pp": 4, "dp": 1, "zero": 1, "schedule": "dualpipe", "microbatches": 8}],
    )
    for i, plan in enumerate(plans):
        session = session_of("gpt-tied", 0, 4, first, plan)
        if first is None:
            list(session.trainer.until(1))
        path = saving.save(session.trainer, shared_path / f"{i}", 1)
        same_bits(first or path, path)
        first = first or path


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("zero", (1, 2, 3))
def test_a_resumed_run_is_the_uninterrupted_one(world, shared_path, zero):
    cfg = describe("gpt-dropout", {"dp": world.size, "zero": zero, "microbatches": 2, "sync": SYNC})
    want = run(cfg, world)
    first, second = Session(cfg, world, Recorder()), Session(cfg, world, Recorder())
    losses = [r.loss for r in first.trainer.until(2)]
    saving.restore(second.trainer, saving.save(first.trainer, shared_path, 1))
    losses += [r.loss for r in second.trainer.until(cfg.train.steps)]
    assert losses == want.losses
    for name, w in second.trainer.parts[0].weights_by_name().items():
        assert np.array_equal(host(w), want.weights[0][name])
