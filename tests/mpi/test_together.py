"""Layers, samples and optimizer state cut at once: tensor, sequence, context, data and pipeline parallelism and ZeRO, against one rank."""

from __future__ import annotations

import numpy as np
import pytest
import test_asynchronous
from mpi4py import MPI
from proof import compare, describe, run, serial
from test_resharding import SYNC

from hpcpar.comm.world import World
from hpcpar.errors import PlanError
from hpcpar.forms.context import FORMS
from hpcpar.run import agreement, feasible, saving
from hpcpar.run.evaluate import evaluate
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

KINDS = ("gpt-tied", "gpt-dropout", "gpt-shared", "llama-tied", "llama-shared")


def prove(world, style, plan, train=()):
    got = run(describe(f"cut-{style}", plan, dict(train)), world)
    compare(got, serial(f"cut-{style}", (), tuple(train)), exact=False)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", KINDS)
def test_layers_of_cut_samples(world, style, form, sequence):
    """13 positions over 2 ranks, 3 samples of 6 or 7 of them over 2 again: rows of a rank begin and end within runs."""
    prove(world, style, {"tp": 2, "cp": 2, "context": form, "sequence": sequence})


@pytest.mark.mpi(sizes=(8,))
@pytest.mark.parametrize("plan", ({"tp": 4, "cp": 2}, {"tp": 2, "cp": 4}), ids=("tp 4", "cp 4"))
@pytest.mark.parametrize("form, style", (("zig-zag", "llama-shared"), ("ring", "gpt-dropout"), ("gather", "llama-shared")))
def test_on_eight_ranks(world, form, style, plan):
    prove(world, style, {**plan, "context": form, "sequence": True, "microbatches": 2})


@pytest.mark.mpi(sizes=(8,))
def test_ulysses_cuts_the_heads_that_tp_leaves(world):
    prove(world, "gpt-dropout", {"tp": 2, "cp": 2, "dp": 2, "context": "ulysses", "sequence": True})
    for tp, cp, heads in ((4, 2, 1), (2, 4, 3)):
        said = rf"model.heads / {tp} \(plan.tp\) = {heads} cannot be cut over plan.cp = {cp} ranks.*use plan.cp <= {heads}, or"
        with pytest.raises(PlanError, match=said):
            prove(world, "gpt-dropout", {"tp": tp, "cp": cp, "context": "ulysses"})


@pytest.mark.mpi(sizes=(8,))
@pytest.mark.parametrize(
    "schedule, style, chunks", (("1f1b", "gpt-dropout", 1), ("interleaved", "deep-llama", 2), ("zb-h1", "gpt-shared", 1))
)
def test_with_a_pipeline(world, schedule, style, chunks):
    plan = {"pp": 2, "cp": 2, "tp": 2, "sequence": True, "microbatches": 2, "schedule": schedule, "chunks": chunks}
    prove(world, style, plan)


ZERO = {
    "tp": {"tp": 2, "dp": 2},
    "sequence": {"tp": 2, "dp": 2, "sequence": True, "accumulate": 2},
    "tp alone": {"tp": 4},
    "cp": {"cp": 2, "dp": 2, "microbatches": 2},
    "cp alone": {"cp": 4, "context": "gather"},
    "tp and cp": {"tp": 2, "cp": 2, "sequence": True},
    "tp and pp": {"tp": 2, "pp": 2, "microbatches": 2, "sequence": True},
    "cp and pp": {"cp": 2, "pp": 2, "microbatches": 2, "schedule": "zb-h1"},
}


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("style", ("gpt-tied", "gpt-shared", "llama-untied"))
@pytest.mark.parametrize("case", ZERO)
def test_sharded_optimizer_state(world, case, style):
    if style == "llama-untied" and case == "tp alone":  # 3 key/value heads
        style = "llama-shared"
    prove(world, style, {**ZERO[case], "zero": 1, "sync": SYNC})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("zero", (2, 3))
@pytest.mark.parametrize("style", ("gpt-tied", "llama-untied"))
def test_sharded_gradients_and_weights(world, style, zero):
    prove(world, style, {"tp": 2, "dp": 2, "zero": zero, "sync": SYNC, "accumulate": 2})
    prove(world, style, {"cp": 2, "dp": 2, "zero": zero, "sync": SYNC, "context": "ring"})


@pytest.mark.mpi(sizes=(8,))
@pytest.mark.parametrize("style, schedule, chunks", (("deep", "interleaved", 2), ("gpt-shared", "1f1b", 1), ("llama-shared", "zb-h1", 1)))
@pytest.mark.parametrize("sequence", (False, True))
def test_sharded_in_three_dimensions(world, style, schedule, chunks, sequence):
    plan = {
        "dp": 2,
        "pp": 2,
        "tp": 2,
        "zero": 1,
        "microbatches": 2,
        "schedule": schedule,
        "chunks": chunks,
        "sequence": sequence,
        "sync": SYNC,
    }
    prove(world, style, plan)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "plan", ({"tp": 2, "cp": 2}, {"tp": 2, "cp": 2, "zero": 1}, {"cp": 2, "dp": 2, "zero": 3}, {"tp": 2, "dp": 2, "zero": 3})
)
def test_evaluation(world, plan):
    found = []
    for where, p in ((world, plan), (World(MPI.COMM_SELF.Dup()), {})):
        found.append(evaluate(Session(describe("cut-gpt-dropout", p), where, Recorder()).trainer, 29))
    (loss, count), (want, every) = found
    assert count == every > 0 and loss == pytest.approx(want, rel=1e-12)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "plan, sync",
    (
        ({"cp": 4}, {"compress": "top-k", "keep": 1.0}),
        ({"dp": 2, "cp": 2}, {"compress": "powersgd", "rank": 256}),
    ),
    ids=("cp", "dp and cp"),
)
def test_compression_that_loses_nothing(world, plan, sync):
    prove(world, "gpt-shared", {**plan, "sync": {**SYNC, **sync}})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "plan",
    (
        {"tp": 2, "dp": 2, "sequence": True},
        {"tp": 2, "cp": 2},
    ),
    ids=("dp", "cp"),
)
def test_halves_of_pieces(world, plan):
    """Near after a step; what all ranks of tp hold stays equal on them, bit for bit."""
    cfg = describe("cut-gpt-shared", {**plan, "sync": {**SYNC, "compress": "float16"}}, {"check_replicas": 1, "steps": 3})
    session, found = Session(cfg, world, Recorder()), []
    session.trainer.watch = lambda named: found.append({n: g.copy() for n, g in named[0].items()})
    for _ in session.trainer.until(3):
        agreement.check(session.trainer)
    want, places = serial("cut-gpt-shared", ()).everywhere(0), session.trainer.parts[0].map.parameters
    for name, g in found[0].items():
        whole = want[name][places[name].slices]
        assert np.abs(g - whole).max() <= 2e-3 * np.abs(want[name]).max() + 1e-6, name
        assert np.abs(whole).max() < 1e-6 or not np.array_equal(g, whole), name


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "plan, sync",
    (
        ({"cp": 2, "dp": 2, "accumulate": 2}, {"compress": "top-k", "keep": 0.1}),
        ({"tp": 2, "dp": 2, "sequence": True}, {"mode": "local", "every": 2, "outer_rate": 0.7}),
    ),
    ids=("compressed", "local"),
)
def test_what_is_owed_and_what_replicas_keep_are_resumed(world, shared_path, plan, sync):
    """Bit for bit: what compression left out, and the optimizer state of each replica's pieces."""
    cfg = describe("cut-gpt-shared", {**plan, "sync": {**SYNC, **sync}}, {"steps": 4})
    want = run(cfg, world)
    first, second = Session(cfg, world, Recorder()), Session(cfg, world, Recorder())
    losses = [r.loss for r in first.trainer.until(2)]
    saving.restore(second.trainer, saving.save(first.trainer, shared_path, 1))
    losses += [r.loss for r in second.trainer.until(4)]
    assert losses == want.losses
    for name, w in second.trainer.parts[0].weights_by_name().items():
        assert np.array_equal(w, want.weights[0][name]), name


@pytest.mark.mpi(sizes=(4,))
def test_shards_of_a_pipeline_without_flushes(world):
    """Sums over tp come before those over replicas, which leave a rank its shard alone."""
    for style, sequence in (("cut-gpt-tied", True), ("cut-llama-shared", False)):
        plan = {"dp": 2, "tp": 2, "sequence": sequence, "zero": 1, "schedule": "pipedream-2bw", "microbatches": 3, "sync": SYNC}
        test_asynchronous.prove(world, style, plan, {"batch": 12, "optimizer": "sgd"}, (4,), exact=False)


REFUSED = {
    "a parameter server": ({"tp": 2, "sync": {"mode": "asp"}}, {}, ["asp", "plan.tp = 2", "plan.cp = 1", 'mode = "bsp"']),
    "a bounded one": ({"cp": 2, "sync": {"mode": "ssp"}}, {}, ["ssp", "plan.cp = 2", "whole layers and samples"]),
    "offloaded layers": ({"tp": 2, "offload": {}}, {}, ["plan.offload", "plan.tp = 2", "no offload"]),
    "offloaded samples": ({"cp": 2, "offload": {}}, {}, ["plan.offload", "plan.cp = 2", "no offload"]),
    "left out of pieces": ({"tp": 2, "dp": 2, "sync": {"compress": "top-k"}}, {}, ["top-k", "plan.tp = 2", "float16"]),
    "streamed sums": ({"tp": 2, "dp": 2, "zero": 2, "sequence": True}, {}, ["plan.zero = 2", "sequence = true", "zero = 1"]),
    "streamed heads": ({"tp": 4, "zero": 3}, {}, ["plan.zero = 3", "kv_heads = 1", "tp = 4", "zero = 1"]),
    "sleeping layers": ({"tp": 2}, {"emulate": {"F": 0.1}}, ["emulate", "plan.tp = 2", "plan.tp = 1"]),
    "sleeping samples": ({"cp": 2}, {"emulate": {"F": 0.1}}, ["emulate", "plan.cp = 2", "plan.cp = 1"]),
    "rows": ({"tp": 4, "cp": 13, "sequence": True, "microbatches": 8}, {}, ["3 rows", "plan.tp = 4", "plan.tp <= 3"]),
}


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize("plan, train, words", REFUSED.values(), ids=REFUSED)
def test_refused_with_the_numbers_and_the_remedy(plan, train, words):
    with pytest.raises(PlanError) as refusal:
        feasible.check_sharing(describe("cut-gpt-shared", plan, train))
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
