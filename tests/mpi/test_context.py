"""Context parallelism: one rank against samples cut over many, every form, both styles, alone and with data and pipeline parallelism."""

from __future__ import annotations

import numpy as np
import pytest
import test_asynchronous
from mpi4py import MPI
from proof import GPT, LLAMA, STYLES, compare, describe, run, serial

from hpcpar.comm.world import World
from hpcpar.errors import PlanError
from hpcpar.forms.context import FORMS
from hpcpar.run.evaluate import evaluate
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

KINDS = ("gpt-tied", "gpt-untied", "gpt-dropout", "llama-tied", "llama-untied")
STYLES |= {
    "short": {**GPT, "heads": 4, "context": 5},
    "shortest": {**LLAMA, "context": 4},
    "one key/value head": {**LLAMA, "kv_heads": 1, "layers": 3},
    "groups over two ranks": {**LLAMA, "heads": 6, "kv_heads": 2, "layers": 3},
    "uneven groups": {**LLAMA, "heads": 12, "kv_heads": 6, "layers": 3},
}


def prove(world, style, plan, train=(), microbatches=1):
    compare(run(describe(style, plan, dict(train)), world), serial(style, (("microbatches", microbatches),), tuple(train)), exact=False)


def refused(world, style, form):
    """Ulysses on more ranks than heads is refused on all of them."""
    if form != "ulysses" or world.size <= STYLES[style]["heads"]:
        return False
    with pytest.raises(PlanError, match=f"model.heads = 3 cannot be cut over plan.cp = {world.size}"):
        run(describe(style, {"cp": world.size, "context": form}), world)
    return True


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", KINDS)
def test_cut_samples_are_the_serial_model(world, style, form):
    if not refused(world, style, form):
        prove(world, style, {"cp": world.size, "context": form})


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", ("gpt-dropout", "llama-tied"))
def test_recompute_exchanges_again(world, style, form):
    prove(world, style, {"cp": world.size, "context": form, "recompute": "full", "microbatches": 2})


@pytest.mark.mpi(sizes=(3, 4))
@pytest.mark.parametrize("form", FORMS)
def test_chunks_of_one_position_or_none(world, form):
    prove(world, "short" if world.size == 3 else "shortest", {"cp": world.size, "context": form})


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("style", ("one key/value head", "groups over two ranks", "uneven groups"))
def test_grouped_queries(world, style):
    prove(world, style, {"cp": world.size, "context": "ulysses"})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style, accumulate", (("gpt-tied", 1), ("gpt-dropout", 3)))
def test_with_data_parallelism(world, style, accumulate, form):
    sync = {"bucket_mb": 0.01, "first_bucket_mb": 0.002}
    prove(world, style, {"dp": 2, "cp": 2, "context": form, "accumulate": accumulate, "sync": sync})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", ("gpt-dropout", "llama-untied"))
def test_with_a_pipeline(world, style, form):
    prove(world, style, {"pp": 2, "cp": 2, "context": form, "microbatches": 4}, microbatches=4)


SCHEDULES = {"gpipe": 1, "interleaved": 2, "zb-h1": 1, "zb-v": 2, "dualpipe": 1, "dualpipe-v": 2, "chimera": 1}


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_with_every_kind_of_schedule(world, schedule):
    recompute = "full" if schedule in ("gpipe", "zb-h1") else "none"
    plan = {"pp": 2, "cp": 2, "schedule": schedule, "chunks": SCHEDULES[schedule], "microbatches": 4, "recompute": recompute}
    prove(world, "gpt-tied", plan, microbatches=4)


@pytest.mark.mpi(sizes=(8,))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", ("gpt-tied", "llama-untied"))
def test_with_both(world, style, form):
    prove(world, style, {"dp": 2, "pp": 2, "cp": 2, "context": form, "microbatches": 2}, microbatches=2)
    if style == "llama-untied" or form != "ulysses":
        prove(world, style, {"pp": 2, "cp": 4, "context": form, "microbatches": 2, "order": ["cp", "dp", "pp", "tp"]}, microbatches=2)


@pytest.mark.mpi(sizes=(4,))
def test_order_of_axes_does_not_matter(world):
    prove(world, "llama-untied", {"pp": 2, "cp": 2, "microbatches": 4, "order": ["cp", "pp", "dp", "tp"]}, microbatches=4)


SGD = {"optimizer": "sgd"}  # over seven steps Adam amplifies the rounding of re-associated sums


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("name, style, clip, m", (("pipedream", "gpt-untied", 0.0, 1), ("pipedream-2bw", "gpt-tied", 0.5, 4)))
def test_asynchronous_pipelines_against_their_oracle(world, name, style, clip, m):
    plan = {"pp": world.size // 2, "cp": 2, "schedule": name, "microbatches": m}
    test_asynchronous.prove(world, style, plan, {"clip": clip, "batch": 8, **SGD}, (3,), exact=False)


@pytest.mark.mpi(sizes=(8,))
def test_replicated_stages_of_cut_samples(world):
    plan = {"pp": 2, "replicas": [2, 2], "cp": 2, "schedule": "pipedream"}
    test_asynchronous.prove(world, "gpt-untied", plan, {"clip": 0.0, **SGD}, (3,), exact=False)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("plan", ({"cp": 4}, {"cp": 2, "dp": 2}, {"cp": 2, "pp": 2, "microbatches": 2}))
def test_evaluation(world, plan):
    """Held-out samples are cut too, and every label counts once; the last microbatch is filled up."""
    found = []
    for where, p in ((world, plan), (World(MPI.COMM_SELF.Dup()), {})):
        trainer = Session(describe("llama-tied", p), where, Recorder()).trainer
        found.append(evaluate(trainer, 29))
    (loss, count), (want, all_labels) = found
    assert count == all_labels > 0
    assert np.isclose(loss, want, rtol=1e-12, atol=0)


@pytest.mark.mpi(sizes=(4,))
def test_more_ranks_than_positions_are_refused(world):
    STYLES["too short"] = {**GPT, "heads": 4, "context": 3}
    for form in FORMS:
        with pytest.raises(PlanError, match=r"model.context = 3 cannot be cut over plan.cp = 4 ranks; use plan.cp <= 3"):
            run(describe("too short", {"cp": 4, "context": form}), world)
