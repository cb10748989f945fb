"""Checkpoints move between any cuts of the experts: each is written once, in global form, and the run goes on as if it had not stopped."""

from __future__ import annotations

import numpy as np
import pytest
import styles_of_experts  # noqa: F401  # adds its styles
from mpi4py import MPI
from proof import Ran, compare, corpus, describe, host, serial
from test_zero_checkpoints import same_bits

from hpcpar.comm.world import World
from hpcpar.run import saving
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

SYNC = {"bucket_mb": 0.01, "first_bucket_mb": 0.002}
TOUR = [  # dp, pp, ep, zero
    (2, 1, 2, 0),
    (1, 1, 1, 0),
    (4, 1, 4, 0),
    (2, 2, 2, 1),
    (3, 1, 3, 0),
    (4, 1, 2, 1),
    (2, 1, 1, 3),
    (2, 1, 2, 1),
    (4, 1, 4, 1),
]


def session_of(style, plan, path):
    """A session on the first ranks, gone on from a checkpoint; None on the others."""
    dp, pp, ep, zero = plan
    mine = MPI.COMM_WORLD.Get_rank() < dp * pp
    comm = MPI.COMM_WORLD.Split(0 if mine else 1)
    if not mine:
        return None
    tables = {"dp": dp, "pp": pp, "ep": ep, "zero": zero, "sync": SYNC, "microbatches": pp}
    session = Session(describe(style, tables, {"steps": len(TOUR), "warmup": 2}), World(comm, wait="auto", timeout_s=60.0), Recorder())
    if path:
        saving.restore(session.trainer, path)
    return session


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("style", ("experts-sigmoid-bias", "experts-llama"))
def test_a_tour_of_cuts(world, shared_path, style):
    """A step under each plan, each gone on from the one before; what is restored is saved again, bit for bit."""
    corpus()  # collective: on all ranks before some of them describe
    path, got = None, Ran()
    for step, plan in enumerate(TOUR):
        session = session_of(style, plan, path)
        if session:
            trainer = session.trainer
            if path:
                again = saving.save(trainer, shared_path / f"again{step}", 1)
                if world.rank == 0:
                    same_bits(path, again)
            (result,) = trainer.until(step + 1)
            got.losses.append(result.loss)
            got.norms.append(result.grad_norm)
            got.auxiliary.append(result.auxiliary)
            path = saving.save(trainer, shared_path / f"{step}", 1)
            got.weights = {s: {n: host(w) for n, w in part.weights_by_name().items()} for s, part in trainer.parts.items()}
            got.slices = {n: p.slices for part in trainer.parts.values() for n, p in part.map.parameters.items()}
        path = MPI.COMM_WORLD.bcast(path)
    want = serial(style, (), (("steps", len(TOUR)), ("warmup", 2)))
    assert np.allclose(got.losses[-1], want.losses[-1], rtol=1e-12, atol=0)  # the last plan is on all ranks
    if world.rank == 0:
        got.gradients = [{0: {n: want.everywhere(step)[n][got.slices[n]] for n in got.slices}} for step in range(len(TOUR))]
        compare(got, want, exact=False)
