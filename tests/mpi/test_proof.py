"""One rank against many: pipelines exactly, data parallelism to 1e-12, each schedule, both styles, tied and untied."""

from __future__ import annotations

import numpy as np
import pytest
from proof import compare, describe, run, serial

from hpcpar.data import Corpus
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import initial
from hpcpar.nn.stage import Stage

STYLES = ("gpt-tied", "gpt-untied", "gpt-dropout", "llama-tied", "llama-untied")
SCHEDULES = ("naive", "gpipe", "1f1b")


def prove(world, style, plan, serial_plan=(), exact=True, train=()):
    got = run(describe(style, plan, dict(train)), world)
    compare(got, serial(style, tuple(serial_plan), tuple(train)), exact)


def pipeline(pp, microbatches, **more):
    return {"pp": pp, "microbatches": microbatches, **more}


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("style", STYLES)
def test_pipeline_is_the_serial_model_exactly(world, style, schedule):
    prove(world, style, pipeline(world.size, 6, schedule=schedule), [("microbatches", 6)])


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("microbatches", (1, 2))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fewer_microbatches_than_stages(world, schedule, microbatches):
    prove(world, "gpt-tied", pipeline(world.size, microbatches, schedule=schedule), [("microbatches", microbatches)])


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("style", ("gpt-dropout", "llama-untied"))
def test_recompute_changes_no_bit(world, style, schedule):
    prove(world, style, pipeline(world.size, 4, schedule=schedule, recompute="full"), [("microbatches", 4)])


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("style", ("gpt-tied", "llama-untied"))
def test_accumulation_in_a_pipeline_is_more_microbatches(world, style):
    prove(world, style, pipeline(world.size, 2, accumulate=3), [("microbatches", 6)])


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("stages", ([0, 2, 3, 0], [1, 1, 1, 2], [2, 1, 2, 0]))
def test_stages_by_hand(world, stages):
    prove(world, "gpt-tied", pipeline(4, 4, stages=stages), [("microbatches", 4)])


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("accumulate", (1, 2))
@pytest.mark.parametrize("style", STYLES)
def test_data_parallel(world, style, accumulate):
    plan = {"dp": world.size, "accumulate": accumulate, "sync": {"bucket_mb": 0.01, "first_bucket_mb": 0.002}}
    prove(world, style, plan, exact=False)


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("bucket_mb", (1e-6, 0.02, 100))
def test_data_parallel_accumulates_three_times(world, bucket_mb):
    prove(world, "gpt-tied", {"dp": 2, "accumulate": 3, "microbatches": 2, "sync": {"bucket_mb": bucket_mb}}, exact=False)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("recompute", ("none", "full"))
@pytest.mark.parametrize("accumulate", (1, 3))
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("style", ("gpt-tied", "gpt-untied", "llama-tied"))
def test_data_and_pipeline(world, style, schedule, accumulate, recompute):
    plan = pipeline(2, 2, dp=2, schedule=schedule, accumulate=accumulate, recompute=recompute)
    prove(world, style, plan, exact=False)


@pytest.mark.mpi(sizes=(4,))
def test_order_of_axes_does_not_matter(world):
    prove(world, "gpt-tied", pipeline(2, 2, dp=2, order=["dp", "cp", "pp", "tp"]), exact=False)


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
@pytest.mark.parametrize("clip", (0.0, 1e-3))
def test_optimizers_and_clipping(world, optimizer, clip):
    train = [("optimizer", optimizer), ("clip", clip)]
    prove(world, "gpt-tied", pipeline(2, 4), [("microbatches", 4)], train=train)
    prove(world, "gpt-tied", {"dp": 2}, exact=False, train=train)


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize("style", STYLES)
def test_microbatches_and_accumulation_on_one_rank(world, style):
    for plan in ({"microbatches": 4}, {"accumulate": 3}, {"microbatches": 2, "accumulate": 3, "recompute": "full"}):
        prove(world, style, plan, exact=False)


@pytest.mark.mpi(sizes=(1,))
def test_the_loss_is_a_mean_over_the_unmasked_labels_of_the_whole_batch(world):
    """Written out once more: one forward and backward of the whole batch, over the labels that count."""
    cfg = describe("gpt-tied", {"microbatches": 3, "accumulate": 2})
    got = run(cfg, world)
    corpus = Corpus.of(cfg.data, cfg.model, cfg.train.seed)
    ids, labels = corpus.batch(0, cfg.train.batch)
    count = int((labels >= 0).sum())
    assert 0 < count < labels.size
    stage = Stage(layers(cfg.model), Frame.of(cfg.model, cfg.train.seed, np, "float64"))
    flat = np.zeros(stage.map.size)
    for name, view in stage.map.by_name(flat).items():
        view[...] = initial(stage.map.parameters[name], cfg.train.seed, dtype="float64")
    at = Microbatch(stage.frame, len(ids), cfg.model.context)
    total, saved = stage.forward(ids, labels.reshape(-1), stage.map.weights(flat), at)
    assert got.losses[0] == pytest.approx(total / count, rel=1e-13)
    gradients = Gradients(stage.map, np, "float64")
    gradients.last = True
    stage.backward(1 / count, saved, stage.map.weights(flat), gradients.add, at)
    for name, want in gradients.by_name().items():
        assert np.abs(got.gradients[0][0][name] - want).max() <= 1e-12 * max(np.abs(want).max(), 1e-6), name
