"""Stopping and going on: bit for bit under one plan, to 1e-12 in float64 under another."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from launch import compare, configuration, hpcpar, metrics

from hpcpar import trace

COMMON = {"train__precision": "float64", "train__batch": 12, "model__dropout": 0.1, "train__warmup": 3, "run__checkpoint_every": 5}


def forget_the_end(folder):
    """As after a kill: the checkpoint of step 5 is the newest, and there are lines and events of later steps."""
    shutil.rmtree(folder / "checkpoints" / "step00000010")


def train(tmp_path, out, *flags, ranks, **settings):
    done = hpcpar("train", configuration(tmp_path, **{**COMMON, **settings}), "--out", tmp_path / out, *flags, ranks=ranks)
    assert done.code == 0, done.err
    return done


PIPE, BOTH = {"plan__pp": 2, "plan__microbatches": 3}, {"plan__dp": 2, "plan__pp": 2}


@pytest.mark.parametrize(
    "optimizer, plan, ranks",
    [
        pytest.param("adamw", {}, 1, id="adamw-serial"),
        pytest.param("sgd", PIPE, 2, id="sgd-pp"),
        pytest.param("adamw", BOTH, 4, id="adamw-dp x pp"),
        pytest.param("sgd", {}, 1, id="sgd-serial", marks=pytest.mark.long),
        pytest.param("adamw", PIPE, 2, id="adamw-pp", marks=pytest.mark.long),
        pytest.param("sgd", BOTH, 4, id="sgd-dp x pp", marks=pytest.mark.long),
    ],
)
def test_resumed_run_is_the_uninterrupted_one(tmp_path, plan, ranks, optimizer):
    plan = {**plan, "train__optimizer": optimizer}
    train(tmp_path, "whole", ranks=ranks, train__steps=10, **plan)
    train(tmp_path, "parts", "--set", "train.steps=10", ranks=ranks, train__steps=10, **plan)
    forget_the_end(tmp_path / "parts")
    done = train(tmp_path, "parts", "--resume", ranks=ranks, train__steps=10, **plan)
    assert "resumed from" in done.err
    assert compare(tmp_path / "whole", tmp_path / "parts") | {"notes": None} == compare(tmp_path / "whole", tmp_path / "whole") | {
        "notes": None
    }
    assert [line["step"] for line in metrics(tmp_path / "parts")] == list(range(1, 11))
    for key in ("loss", "grad_norm", "digest", "learning_rate"):
        assert [x[key] for x in metrics(tmp_path / "parts")] == [x[key] for x in metrics(tmp_path / "whole")]
    found = trace.open(tmp_path / "parts")
    for rank in range(ranks):
        events = found.events(rank)
        forwards = [int(np.sum((events["step"] == s) & (events["kind"] == 1))) for s in range(1, 11)]
        assert len(set(forwards)) == 1, f"each step once in the trace of rank {rank}: {forwards}"


STALE = {"train__eval_every": 3, "train__eval_samples": 8}
STASHING = {**STALE, "plan__schedule": "pipedream", "model__tied": False, "train__clip": 0.0}


@pytest.mark.parametrize(
    "plan, ranks",
    [
        ({**STASHING, "plan__pp": 3}, 3),
        pytest.param({**STASHING, "plan__pp": 2, "plan__replicas": [2, 1]}, 3, marks=pytest.mark.long),
        pytest.param({**STALE, "plan__schedule": "pipedream-vertical", "plan__pp": 3}, 3, marks=pytest.mark.long),
        pytest.param({**STALE, "plan__schedule": "pipedream-2bw", "plan__pp": 2, "plan__microbatches": 3}, 2, marks=pytest.mark.long),
        ({**STALE, "plan__schedule": "pipedream-2bw", "plan__pp": 2, "plan__dp": 2, "plan__microbatches": 2}, 4),
    ],
    ids=("stashing", "replicas", "vertical", "2bw", "2bw x dp"),
)
def test_asynchronous_runs_evaluate_save_and_resume_at_their_drains(tmp_path, plan, ranks):
    """Steps 3, 5, 6, 9 and 10 are drains; the run goes on from that of step 5."""
    train(tmp_path, "whole", ranks=ranks, train__steps=10, **plan)
    train(tmp_path, "parts", ranks=ranks, train__steps=10, **plan)
    forget_the_end(tmp_path / "parts")
    assert "after step 5" in train(tmp_path, "parts", "--resume", ranks=ranks, train__steps=10, **plan).err
    found = compare(tmp_path / "whole", tmp_path / "parts")
    assert (found["loss"], found["weights"]) == (0, 0), found
    said = trace.open(tmp_path / "whole").metrics(0)
    steps = {int(m["step"]): float(m["value"]) for m in said if m["name"] == b"loss"}
    assert steps == {x["step"]: x["loss"] for x in metrics(tmp_path / "whole")}
    for key in ("loss", "grad_norm", "digest", "learning_rate"):
        assert [x[key] for x in metrics(tmp_path / "parts")] == [x[key] for x in metrics(tmp_path / "whole")]


SERVED = {"mode": "ssp", "staleness": 0}


def test_a_parameter_server_saves_and_resumes(tmp_path):
    """With staleness 0 there is one sequence of updates; shards of three owners are uneven."""
    plan = {"plan__dp": 3, "plan__sync": SERVED, "train__eval_every": 3, "train__eval_samples": 8}
    train(tmp_path, "whole", ranks=3, train__steps=10, **plan)
    train(tmp_path, "parts", ranks=3, train__steps=10, **plan)
    forget_the_end(tmp_path / "parts")
    assert "after step 5" in train(tmp_path, "parts", "--resume", ranks=3, train__steps=10, **plan).err
    found = compare(tmp_path / "whole", tmp_path / "parts")
    assert (found["loss"], found["grad_norm"], found["weights"]) == (0, 0, 0), found
    for key in ("step", "rank", "loss", "grad_norm", "digest", "learning_rate"):
        assert [x[key] for x in metrics(tmp_path / "parts")] == [x[key] for x in metrics(tmp_path / "whole")]


def test_resume_from_and_to_a_parameter_server(tmp_path):
    """Weights and optimizer state are global by name: bsp -> ssp on 3 ranks, and ssp on 2 -> bsp, are the run without a stop."""
    bulk, served = {"plan__dp": 2}, {"plan__dp": 3, "plan__sync": SERVED}
    train(tmp_path, "whole", ranks=2, train__steps=10, **bulk)
    train(tmp_path, "to", ranks=2, train__steps=10, **bulk)
    forget_the_end(tmp_path / "to")
    train(tmp_path, "to", "--resume", ranks=3, train__steps=10, **served)
    assert compare(tmp_path / "whole", tmp_path / "to")["weights"] <= 1e-12
    train(tmp_path, "from", ranks=2, train__steps=10, **{**served, "plan__dp": 2})
    forget_the_end(tmp_path / "from")
    train(tmp_path, "from", "--resume", ranks=2, train__steps=10, **bulk)
    assert compare(tmp_path / "whole", tmp_path / "from")["weights"] <= 1e-12


def test_an_asynchronous_run_resumes(tmp_path):
    plan = {"plan__dp": 2, "plan__sync": {"mode": "asp"}}
    train(tmp_path, "out", ranks=2, train__steps=10, **plan)
    forget_the_end(tmp_path / "out")
    train(tmp_path, "out", "--resume", ranks=2, train__steps=10, **plan)
    assert [(x["step"], x["rank"]) for x in metrics(tmp_path / "out")] == [(s, r) for s in range(1, 11) for r in (0, 1)]


@pytest.mark.parametrize(
    "plan, ranks",
    [
        ({"plan__pp": 4}, 4),
        ({"plan__dp": 3, "plan__zero": 3}, 3),
        pytest.param({}, 1, marks=pytest.mark.long),  # many more: tests/mpi/test_resharding.py
        pytest.param({"plan__dp": 3}, 3, marks=pytest.mark.long),
        pytest.param({"plan__dp": 2, "plan__pp": 2}, 4, marks=pytest.mark.long),
    ],
)
def test_resume_under_another_plan(tmp_path, plan, ranks):
    first = {"plan__pp": 2, "plan__microbatches": 2}
    train(tmp_path, "whole", ranks=2, train__steps=10, **first)
    train(tmp_path, "moved", ranks=2, train__steps=10, **first)
    forget_the_end(tmp_path / "moved")
    train(tmp_path, "moved", "--resume", ranks=ranks, train__steps=10, **plan)
    found = compare(tmp_path / "whole", tmp_path / "moved")
    assert max(found["loss"], found["grad_norm"], found["weights"]) <= 1e-12, found


def test_resume_without_a_checkpoint_starts(tmp_path):
    assert "starting at step 1" in train(tmp_path, "new", "--resume", ranks=1).err


def test_resume_of_another_model_is_refused(tmp_path):
    train(tmp_path, "out", ranks=1)
    done = hpcpar("train", configuration(tmp_path, **{**COMMON, "model__layers": 5}), "--out", tmp_path / "out", "--resume")
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert "layers = 4, not 5" in done.said[0]


def test_sample_writes_text(tmp_path):
    train(tmp_path, "out", ranks=1)
    for where in ("out", "out/checkpoints/step00000004"):
        done = hpcpar("sample", tmp_path / where, "--prompt", "abc", "--tokens", 9)
        assert done.code == 0, done.err
        assert done.out.startswith("abc")
    assert hpcpar("sample", tmp_path / "out", "--prompt", "abc", "--tokens", 9, "--temperature", 0).out.startswith("abc")
    done = hpcpar("sample", tmp_path)
    assert (done.code, len(done.said)) == (2, 1)
