"""Replicas that step on their own, and compressed gradients, as a user runs them: volumes, resumption, refusals, failures."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from launch import HERE, compare, configuration, hpcpar, metrics

from hpcpar import checkpoint, trace
from hpcpar.trace.schema import Kind

COMMON = {"train__precision": "float64", "train__batch": 12, "train__warmup": 2, "train__steps": 8, "run__checkpoint_every": 4}
LOCAL = {"plan__sync": {"mode": "local", "every": 2, "outer_rate": 0.7, "outer_momentum": 0.9}}
TOP_K = {"plan__sync": {"compress": "top-k", "keep": 0.05, "bucket_mb": 0.01}}
POWER = {"plan__sync": {"compress": "powersgd", "rank": 2, "bucket_mb": 0.01}}


def train(tmp_path, out, *flags, ranks, code=0, **settings):
    done = hpcpar("train", configuration(tmp_path, **{**COMMON, **settings}), "--out", tmp_path / out, *flags, ranks=ranks)
    assert done.code == code, done.err
    return done


def bytes_per_step(folder):
    """{operation: bytes a step} of the collectives over dp."""
    done = hpcpar("analyse", folder, "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["volumes"]["operations"]
    return {r["operation"]: r["bytes_per_step"] for r in rows if r["kind"] == "collective" and r["axis"] == "dp"}


def test_averages_send_a_share_of_the_bytes(tmp_path):
    """One in four of the bytes of bulk-synchronous steps; halves a half of them, each way."""
    train(tmp_path, "bsp", ranks=2, plan__dp=2, train__precision="float32")
    train(tmp_path, "local", ranks=2, plan__dp=2, train__precision="float32", plan__sync={"mode": "local", "every": 4})
    train(tmp_path, "half", ranks=2, plan__dp=2, train__precision="float32", plan__sync={"compress": "float16"})
    bsp, local, half = (bytes_per_step(tmp_path / n) for n in ("bsp", "local", "half"))
    assert local == {"average": bsp["allreduce"] / 4}
    assert half == {
        "alltoall": bsp["allreduce"] / 2,
        "allgather": bsp["allreduce"] / 2,
    }  # together what an all-reduce does, of half the bytes
    assert [line["step"] for line in metrics(tmp_path / "local")] == list(range(1, 9))
    found = trace.open(tmp_path / "local")
    for rank in range(2):  # in the other steps no rank speaks to another
        events = found.events(rank)
        events = events[(events["kind"] == Kind.COLLECTIVE) & (events["step"] >= 1)]
        assert set(events["step"].tolist()) == {4, 8}


@pytest.mark.parametrize(
    "plan, ranks",
    [
        ({**LOCAL, "plan__dp": 2, "plan__pp": 2, "plan__microbatches": 2}, 4),
        ({**TOP_K, "plan__dp": 2, "plan__pp": 2}, 4),
        ({**POWER, "plan__dp": 3}, 3),
    ],
    ids=("local", "top-k", "powersgd"),
)
def test_resumed_run_is_the_uninterrupted_one(tmp_path, plan, ranks):
    train(tmp_path, "run", ranks=ranks, **plan)
    shutil.copytree(tmp_path / "run", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step00000008")
    assert "after step 4" in train(tmp_path, "parts", "--resume", ranks=ranks, **plan).err
    found = compare(tmp_path / "run", tmp_path / "parts")
    assert (found["loss"], found["grad_norm"], found["weights"]) == (0, 0, 0), found
    last = [checkpoint.open(checkpoint.newest(tmp_path / n / "checkpoints")) for n in ("run", "parts")]
    assert last[0].kinds() == last[1].kinds()
    for kind in last[0].kinds():  # all state, also that of each replica
        for name in last[0].names(kind):
            assert np.array_equal(*(at.read(kind, name) for at in last)), (kind, name)
    beside = set(last[0].kinds()) - {"weights"}
    assert any(k.split(".")[-1] == str(int(plan["plan__dp"]) - 1) for k in beside), beside


@pytest.mark.long
def test_what_a_checkpoint_of_replicas_can_become(tmp_path):
    """The same replicas under another cut go on; another number of them, or one state for all, has no place for their states."""
    plan = {**LOCAL, "plan__dp": 2, "plan__microbatches": 2}  # which samples are a replica's depends on them
    train(tmp_path, "run", ranks=2, **plan)
    for name in ("moved", "three", "bsp"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        shutil.rmtree(tmp_path / name / "checkpoints" / "step00000008")
    train(tmp_path, "moved", "--resume", ranks=4, **plan, plan__pp=2)
    found = compare(tmp_path / "run", tmp_path / "moved")
    assert max(found["loss"], found["weights"]) <= 1e-12, found
    for name, ranks, other in (("three", 3, {**LOCAL, "plan__dp": 3}), ("bsp", 2, {"plan__dp": 2})):
        done = train(tmp_path, name, "--resume", ranks=ranks, code=2, **other)
        assert len(done.said) == 1 and "each of 2 replicas" in done.said[0] and f"plan.dp = {ranks}" in done.said[0], done.err
    train(tmp_path, "shared", ranks=2, plan__dp=2)  # the other way around all replicas take the one state
    shutil.rmtree(tmp_path / "shared" / "checkpoints" / "step00000008")
    assert "after step 4" in train(tmp_path, "shared", "--resume", ranks=2, **plan).err


def test_what_is_owed_is_owed_by_someone(tmp_path):
    """Under another number of replicas the sum of what is owed is the same; without a memory the checkpoint is refused."""
    train(tmp_path, "run", ranks=3, plan__dp=3, **TOP_K)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [peak["owed"] for peak in summary["peak_bytes"]] == [2 * 8 * summary["parameters"]] * 3
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step00000008")
    found = checkpoint.open(checkpoint.newest(tmp_path / "run" / "checkpoints"))
    owed = {n: sum(found.read(f"owed.{i}", n) for i in range(3)) for n in found.names("owed.0")}
    assert any(np.abs(v).max() > 0 for v in owed.values())
    done = train(tmp_path, "run", "--resume", ranks=2, code=2, plan__dp=2)
    assert len(done.said) == 1 and "top-k left out on 3 ranks" in done.said[0], done.err
    again = {"plan__dp": 2, "plan__pp": 2, **TOP_K, "train__steps": 4}
    train(tmp_path, "run", "--resume", ranks=4, **again)  # no step is left: what was read is written
    found = checkpoint.open(checkpoint.newest(tmp_path / "run" / "checkpoints"))
    assert {k for k in found.kinds() if k.startswith("owed")} == {"owed.0", "owed.1"}
    for name, value in owed.items():
        assert np.allclose(found.read("owed.0", name) + found.read("owed.1", name), value, rtol=1e-15, atol=1e-18), name


def test_factors_of_another_rank_are_refused(tmp_path):
    train(tmp_path, "run", ranks=2, plan__dp=2, **POWER)
    done = train(tmp_path, "run", "--resume", ranks=2, code=2, plan__dp=2, plan__sync={"compress": "powersgd", "rank": 3})
    assert len(done.said) == 1 and "2 columns" in done.said[0] and "rank = 3" in done.said[0], done.err


def test_a_replica_with_a_gradient_that_is_not_finite_skips_alone(tmp_path):
    program = (str(HERE / "faulty.py"),)
    cfg = configuration(tmp_path, **{**COMMON, **LOCAL, "plan__dp": 2})
    done = hpcpar("nan", 1, 3, "train", cfg, "--out", tmp_path / "out", ranks=2, program=program)
    assert done.code == 0, done.err
    assert "step 3: the gradient norm is not finite; the update is skipped on the replicas that have it" in done.err
    found = checkpoint.open(checkpoint.newest(tmp_path / "out" / "checkpoints"))
    assert [int(found.read(f"applied.{r}", "tokens.weight")[0]) for r in range(2)] == [8, 7]
    lines = metrics(tmp_path / "out")
    assert [line["grad_norm"] is None for line in lines] == [line.get("skipped", False) for line in lines] == [s == 3 for s in range(1, 9)]
    assert all(np.isfinite(x).all() for x in checkpoint.read_weights(found.path).values())


def test_weights_that_are_not_finite_end_the_run_at_the_average(tmp_path):
    """A step so large that weights overflow."""
    settings = {
        "train__optimizer": "sgd",
        "train__clip": 0.0,
        "train__learning_rate": 1e307,
        "train__weight_decay": 1e6,
        "train__warmup": 0,
    }
    cfg = configuration(tmp_path, **{**COMMON, **LOCAL, "plan__dp": 2, **settings})
    done = hpcpar("train", cfg, "--out", tmp_path / "out", ranks=2)
    assert done.code == 1, done.err
    assert "weights of stage 0 are not finite on this replica and may not enter the average" in done.err
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_refused_in_one_line(tmp_path):
    settings = {"plan__dp": 2, "plan__sync": {"mode": "local", "every": 3}, "train__eval_every": 4}
    done = hpcpar("train", configuration(tmp_path, **settings), "--out", tmp_path / "out", ranks=2)
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert "train.eval_every = 4 is no multiple of plan.sync.every = 3" in done.said[0] and "= 3 or 6" in done.said[0]
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
