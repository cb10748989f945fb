"""Layers cut over ranks: tensor and sequence parallelism, alone and with pipelines and data parallelism, against one rank."""

from __future__ import annotations

import pytest
from proof import compare, describe, run, serial

from hpcpar.errors import PlanError

STYLES = ("gpt-tied", "gpt-untied", "gpt-dropout", "gpt-shared", "llama-tied", "llama-untied", "llama-shared")
CANNOT = {("llama-tied", 3), ("llama-untied", 4)}  # 2 key/value heads on 3 ranks, 3 on 4


def prove(world, style, plan, train=()):
    got = run(describe(f"cut-{style}", plan, dict(train)), world)
    compare(got, serial(f"cut-{style}", (), tuple(train)), exact=False)


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("style", STYLES)
def test_tensor_parallel(world, style, sequence):
    """23 samples of 13 positions: no number of ranks divides them, and no rank but the first begins with a sample."""
    plan = {"tp": world.size, "sequence": sequence}
    if (style, world.size) in CANNOT:
        with pytest.raises(PlanError, match=r"kv_heads = \d can neither be cut over plan.tp = \d.*use plan.tp <= \d"):
            prove(world, style, plan)
    else:
        prove(world, style, plan, [("batch", 23)])


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("plan", ({"recompute": "full"}, {"accumulate": 2, "microbatches": 3}), ids=("recompute", "accumulate"))
@pytest.mark.parametrize("style, sequence", (("gpt-dropout", True), ("llama-shared", True), ("gpt-shared", False)))
def test_recomputed_and_accumulated(world, style, sequence, plan):
    prove(world, style, {"tp": world.size, "sequence": sequence, **plan})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("style", ("gpt-tied", "gpt-dropout", "llama-shared"))
@pytest.mark.parametrize(
    "plan",
    (
        {"pp": 2, "microbatches": 4},
        {"dp": 2, "sync": {"bucket_mb": 0.01, "first_bucket_mb": 0.002}},
        {"dp": 2, "order": ["tp", "pp", "cp", "dp"], "accumulate": 2},
    ),
    ids=("pp", "dp", "dp slow tp"),
)
def test_with_pipelines_and_data_parallelism(world, style, sequence, plan):
    prove(world, style, {"tp": 2, "sequence": sequence, **plan})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("schedule, style, chunks", (("zb-h1", "gpt-tied", 1), ("zb-v", "deep", 2), ("dualpipe", "deep", 1)))
def test_under_split_and_two_copy_schedules(world, schedule, style, chunks, sequence):
    plan = {"tp": 2, "pp": 2, "microbatches": 4, "schedule": schedule, "chunks": chunks, "sequence": sequence}
    prove(world, style, plan)


@pytest.mark.mpi(sizes=(8,))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("style", ("deep", "deep-llama"))
@pytest.mark.parametrize("schedule, chunks", (("1f1b", 1), ("interleaved", 2)))
def test_data_pipeline_and_tensor(world, style, schedule, chunks, sequence):
    """PTD-P of Narayanan et al., SC21."""
    plan = {"dp": 2, "pp": 2, "tp": 2, "microbatches": 2, "schedule": schedule, "chunks": chunks, "sequence": sequence}
    prove(world, style, {**plan, "sync": {"bucket_mb": 0.02, "first_bucket_mb": 0.002}})


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
@pytest.mark.parametrize("clip", (0.0, 1e-3))
def test_optimizers_and_clipping(world, optimizer, clip):
    prove(world, "gpt-tied", {"tp": 2, "sequence": True}, [("optimizer", optimizer), ("clip", clip)])
