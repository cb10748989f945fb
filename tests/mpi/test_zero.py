"""ZeRO 1, 2, 3 against the one-process model to 1e-12, and bit for bit against plain data parallelism where the sums are the same."""

from __future__ import annotations

import math

import numpy as np
import proof
import pytest
from proof import STYLES, compare, describe, run, serial

from hpcpar.errors import PlanError
from hpcpar.nn.gradients import Gradients
from hpcpar.parallel.zero.gradients import Streamed
from hpcpar.run.evaluate import evaluate
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session
from hpcpar.schedule.family import Synchronous
from hpcpar.schedule.generate import SCHEDULES

ZERO = (1, 2, 3)
SMALL = {"bucket_mb": 0.01, "first_bucket_mb": 0.002}
TINY = {"bucket_mb": 1e-6, "first_bucket_mb": 1e-6}  # a bucket a matrix or vector
NARROW = {**proof.GPT, "layers": 2, "width": 3, "heads": 1, "context": 5}
NAMES = [name for name, family in SCHEDULES.items() if isinstance(family, Synchronous)]


def prove(world, style, plan, serial_plan=(), train=()):
    compare(run(describe(style, plan, dict(train)), world), serial(style, tuple(serial_plan), tuple(train)), exact=False)


def same(got, want):
    """Losses, gradients and weights of two runs of the same cut, bit for bit; the norm's sum is in another order."""
    assert got.losses == want.losses
    assert np.allclose(got.norms, want.norms, rtol=1e-13, atol=0)
    for mine, other in [*zip(got.gradients, want.gradients, strict=True), (got.weights, want.weights)]:
        assert mine.keys() == other.keys()
        for stage, named in mine.items():
            for name, values in named.items():
                assert np.array_equal(values, other[stage][name]), name


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
@pytest.mark.parametrize(
    "style, zero",
    [(style, 3) for style in ("gpt-tied", "gpt-untied", "gpt-dropout", "llama-tied", "llama-untied")]
    + [(style, zero) for zero in (1, 2) for style in ("gpt-tied", "llama-untied")],
)
def test_every_style_is_the_serial_model(world, style, zero):
    prove(world, style, {"dp": world.size, "zero": zero, "sync": SMALL})


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("zero", ZERO)
@pytest.mark.parametrize("recompute", ("none", "full"))
def test_microbatches_and_accumulation(world, zero, recompute):
    plan = {"dp": world.size, "zero": zero, "microbatches": 2, "recompute": recompute, "sync": SMALL}
    prove(world, "gpt-tied", plan)
    if world.size == 2 and recompute == "none":
        prove(world, "llama-untied", {**plan, "accumulate": 3})
        prove(world, "gpt-tied", {**plan, "schedule": "gpipe", "accumulate": 2})


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("zero", ZERO)
@pytest.mark.parametrize("tied", (True, False))
def test_buckets_of_a_few_elements(world, zero, tied, monkeypatch):
    """Vectors of 3 elements over 4 ranks: some pieces are empty."""
    monkeypatch.setitem(STYLES, f"narrow-{tied}", {**NARROW, "tied": tied})
    prove(world, f"narrow-{tied}", {"dp": world.size, "zero": zero, "microbatches": 2, "sync": TINY})


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("zero", ZERO)
@pytest.mark.parametrize("sync", (SMALL, {}))
def test_two_ranks_are_plain_data_parallelism_bit_for_bit(world, zero, sync):
    train = {"clip": 0.0}
    want = run(describe("gpt-tied", {"dp": 2}, train), world)
    same(run(describe("gpt-tied", {"dp": 2, "zero": zero, "sync": sync}, train), world), want)


@pytest.mark.mpi(sizes=(2,))
def test_zero_1_sums_once_a_step_as_plain_data_parallelism_does(world):
    plan, train = {"dp": 2, "microbatches": 3, "accumulate": 2}, {"clip": 0.0, "optimizer": "sgd"}
    want = run(describe("gpt-tied", plan, train), world)
    same(run(describe("gpt-tied", {**plan, "zero": 1, "sync": SMALL}, train), world), want)


@pytest.mark.mpi(sizes=(3,))
@pytest.mark.parametrize("zero", ZERO)
@pytest.mark.parametrize("optimizer, clip", (("sgd", 0.0), ("sgd", 1e-3), ("adamw", 1e-3)))
def test_optimizers_and_clipping(world, zero, optimizer, clip):
    prove(world, "gpt-tied", {"dp": 3, "zero": zero, "sync": SMALL}, train=[("optimizer", optimizer), ("clip", clip)])


def pipeline(name, pp, **more):
    chunks = {"interleaved": 2}.get(name, SCHEDULES[name].chunks or 1)
    return {"pp": pp, "schedule": name, "microbatches": 4, "chunks": chunks, "zero": 1, "sync": SMALL, **more}


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("name", NAMES)
def test_zero_1_with_every_schedule(world, name):
    """Over pp alone, where only copies of a stage share it, and over dp x pp; the tied weight on two ranks or on one."""
    prove(world, "deep-tied", pipeline(name, 2, dp=world.size // 2), [("microbatches", 4)])


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("name", ("1f1b", "zb-v", "interleaved"))
def test_pipelines_of_two_replicas_bit_for_bit(world, name):
    plan, train = pipeline(name, 2, dp=2), {"clip": 0.0}
    want = run(describe("deep-tied", {**plan, "zero": 0}, train), world)
    same(run(describe("deep-tied", plan, train), world), want)


@pytest.mark.mpi(sizes=(4,))
def test_order_of_axes_does_not_matter(world):
    prove(world, "deep-tied", pipeline("1f1b", 2, dp=2, order=["dp", "cp", "pp", "tp"]), [("microbatches", 4)])


@pytest.mark.mpi(sizes=(4,))
def test_two_copies_on_four_ranks(world):
    for name in ("dualpipe", "chimera"):
        prove(world, "deep-tied", {**pipeline(name, 4), "microbatches": 8}, [("microbatches", 8)])


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("zero", (2, 3))
@pytest.mark.parametrize("name", ("interleaved", "zb-v"))
def test_several_stages_a_rank_without_a_pipeline(world, name, zero):
    prove(world, "deep-tied", {**pipeline(name, 1, dp=world.size), "zero": zero, "microbatches": 2})


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("updates", ("lazy", "eager"))
@pytest.mark.parametrize("clip", (0.0, 0.5))
def test_zero_1_with_two_buffered_weights(world, updates, clip):
    pp = 2 if world.size == 4 else 1
    plan = {"pp": pp, "dp": world.size // pp, "schedule": "pipedream-2bw", "microbatches": 2, "updates": updates, "sync": SMALL}
    want = run(describe("gpt-tied", plan, {"clip": clip}), world)
    got = run(describe("gpt-tied", {**plan, "zero": 1}, {"clip": clip}), world)
    assert got.norms == world.share(got.norms)  # the same bits everywhere
    if world.size != 3 and not clip:
        same(got, want)
        return
    assert np.allclose(got.losses, want.losses, rtol=1e-12, atol=0) and np.allclose(got.norms, want.norms, rtol=1e-12, atol=0)
    for mine, other in [*zip(got.gradients, want.gradients, strict=True), (got.weights, want.weights)]:
        for stage, named in mine.items():
            scale = proof.rms(other[stage])
            for name, values in named.items():
                assert proof.relative(values, other[stage][name], scale) <= 1e-12, name


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("zero", (0, *ZERO))
def test_evaluation_with_unequal_shares(world, zero):
    """5 samples over 2 and 3 ranks, in microbatches of 1: the ranks run equally many forwards, and count their own."""
    session = Session(describe("gpt-tied", {"dp": world.size, "zero": zero, "microbatches": 24 // world.size}), world, Recorder())
    loss, labels = evaluate(session.trainer, 5)
    corpus, alone = session.corpus, Session(describe("gpt-tied", {"microbatches": 24}), proof.World(proof.MPI.COMM_SELF.Dup()), Recorder())
    assert labels == sum(int((corpus.held_out(i, 1)[1] >= 0).sum()) for i in range(5))
    assert loss == pytest.approx(evaluate(alone.trainer, 5)[0], rel=1e-13)


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("zero, fault", ((1, math.nan), (2, math.inf), (3, math.nan)))
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(world, zero, fault, monkeypatch):
    step = [0]

    def poisoned(add):
        def planted(self, layer, part, backward_weight, held):
            def spoilt(held, dw, *more):
                backward_weight(held, dw, *more)
                if world.rank == 1 and step[0] == 2 and layer == 2:
                    dw.reshape(-1)[1] = fault

            add(self, layer, part, spoilt, held)

        return planted

    monkeypatch.setattr(Gradients, "add", poisoned(Gradients.add))
    monkeypatch.setattr(Streamed, "add", poisoned(Streamed.add))
    session = Session(describe("gpt-tied", {"dp": world.size, "zero": zero, "microbatches": 2, "sync": SMALL}), world, Recorder())
    trainer, part = session.trainer, session.trainer.parts[0]
    seen = [{n: proof.host(w) for n, w in part.weights_by_name().items()}]
    for result in trainer.until(4):
        step[0] = trainer.steps
        assert (result.skipped, math.isfinite(result.grad_norm)) == ((True, False) if step[0] == 3 else (False, True))
        seen.append({n: proof.host(w) for n, w in part.weights_by_name().items()})
        moved = any(not np.array_equal(seen[-1][n], seen[-2][n]) for n in seen[0])
        assert moved != result.skipped
    assert part.applied == 3 and all(np.isfinite(w).all() for w in seen[-1].values())


@pytest.mark.mpi(sizes=(2,))
def test_what_cannot_be_is_refused_with_the_reason(world):
    for plan, words in (
        ({"dp": 2, "zero": 1, "sync": {"mode": "local"}}, "bsp"),
        ({"dp": 2, "zero": 1, "sync": {"compress": "top-k"}}, "compress"),
        ({"dp": 2, "zero": 2, "schedule": "pipedream-2bw"}, "pp = 1 with a synchronous schedule"),
        ({"pp": 2, "zero": 2}, "use zero = 1"),
        ({"pp": 2, "zero": 3, "microbatches": 4}, "4 microbatches"),
        ({"pp": 2, "zero": 1, "schedule": "pipedream-vertical"}, "every minibatch"),
        ({"pp": 1, "replicas": [2], "zero": 1, "schedule": "pipedream"}, "every minibatch"),
        ({"dp": 2, "zero": 1, "offload": {"optimizer": True}}, "offload"),
        ({"dp": 2, "zero": 1, "sync": {"algorithm": "ring"}}, "ring"),
    ):
        with pytest.raises(PlanError, match=words):
            run(describe("gpt-untied", plan, {"clip": 0.0}), world)
