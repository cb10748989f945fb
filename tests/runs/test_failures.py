"""A failure on one rank ends all ranks, says why, and leaves a trace that can be read."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from launch import HERE, configuration, hpcpar, metrics

from hpcpar import checkpoint, trace

PROGRAM = (str(HERE / "faulty.py"),)


def faulty(fault, rank, step, *arguments, ranks):
    return hpcpar(fault, rank, step, *arguments, ranks=ranks, program=PROGRAM)


def same_weights(a, b):
    """Whether two runs ended with the same bits; steps and learning rates aside."""
    one, other = (checkpoint.read_weights(checkpoint.newest(run / "checkpoints")) for run in (a, b))
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("rank", (0, 3, pytest.param(1, marks=pytest.mark.long)))
def test_an_exception_on_one_rank_ends_all(tmp_path, rank):
    cfg = configuration(tmp_path, plan__pp=2, plan__dp=2, plan__microbatches=2, train__steps=1000)
    start = time.monotonic()
    done = faulty("raise", rank, 3, "train", cfg, "--out", tmp_path / "out", ranks=4)
    assert time.monotonic() - start < 30
    assert done.code == 1, done.err
    assert f"rank {rank} on" in done.err
    assert "step 3" in done.err
    assert "ValueError: planted" in done.err
    assert done.err.count("Traceback") == 1
    found = trace.open(tmp_path / "out")
    assert not found.missing
    for r in range(4):
        assert set(found.events(r)["step"]) >= {1, 2}


@pytest.mark.parametrize("rank", (2, pytest.param(0, marks=pytest.mark.long)))
def test_a_killed_rank_ends_all(tmp_path, rank):
    cfg = configuration(tmp_path, plan__pp=2, plan__dp=2, plan__microbatches=2, train__steps=1000)
    start = time.monotonic()
    done = faulty("kill", rank, 3, "train", cfg, "--out", tmp_path / "out", ranks=4)
    assert time.monotonic() - start < 30
    assert done.code != 0
    found = trace.open(tmp_path / "out")
    for r in range(4):
        assert set(found.events(r)["step"]) >= {1, 2}


SERVED = ({"plan__sync": {"mode": "asp"}}, {"plan__sync": {"mode": "ssp"}}, {"plan__sync": {"mode": "ssp", "staleness": 2}})
SERVED_IDS = ("asp", "ssp 0", "ssp 2")


@pytest.mark.parametrize("fault, code", (("raise", 1), ("kill", None)))
@pytest.mark.parametrize("plan", SERVED[:2], ids=SERVED_IDS[:2])
def test_a_worker_that_fails_ends_all(tmp_path, plan, fault, code):
    """Also those that go their own way, and those that wait for its clock."""
    cfg = configuration(tmp_path, plan__dp=3, train__batch=9, train__steps=1000, **plan)
    start = time.monotonic()
    done = faulty(fault, 1, 3, "train", cfg, "--out", tmp_path / "out", ranks=3)
    assert time.monotonic() - start < 30
    assert done.code == code if code else done.code != 0, done.err
    if fault == "raise":
        assert "rank 1 on" in done.err and "step 3" in done.err and done.err.count("Traceback") == 1
    found = trace.open(tmp_path / "out")
    for r in range(3):
        assert set(found.events(r)["step"]) >= {1}


@pytest.mark.parametrize("plan, fault", list(zip(SERVED, ("nan", "inf", "inf"), strict=True)), ids=SERVED_IDS)
def test_a_gradient_of_one_worker_that_is_not_finite(tmp_path, plan, fault):
    """With staleness 0 the step is skipped for all; otherwise only that worker's update is, on all owners."""
    together = plan == {"plan__sync": {"mode": "ssp"}}
    cfg = configuration(tmp_path, plan__dp=2, train__learning_rate=0.01, **plan)
    done = faulty(fault, 1, 4, "train", cfg, "--out", tmp_path / "out", ranks=2)
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "out")
    assert [(line["step"], line["rank"]) for line in lines] == [(s, r) for s in (1, 2, 3, 4) for r in (0, 1)]
    skipped = [(line["step"], line["rank"]) for line in lines if line.get("skipped")]
    assert skipped == ([(4, 0), (4, 1)] if together else [(4, 1)])
    found = checkpoint.open(checkpoint.newest(tmp_path / "out" / "checkpoints"))
    assert set(found.fields["applied"].values()) == {3 if together else 7}
    assert all(np.isfinite(w).all() for w in checkpoint.read_weights(found.path).values())


@pytest.mark.parametrize(
    "plan, fault",
    (
        pytest.param({"plan__pp": 2}, "nan", id="pp"),
        pytest.param({"plan__dp": 2}, "inf", id="dp"),
        pytest.param({"plan__pp": 2, "plan__schedule": "pipedream-vertical"}, "inf", id="vertical", marks=pytest.mark.long),
        pytest.param({"plan__pp": 2, "plan__schedule": "pipedream-2bw", "plan__microbatches": 2}, "nan", id="2bw"),
    ),
)
def test_a_gradient_that_is_not_finite_skips_the_step_on_all(tmp_path, fault, plan):
    cfg = configuration(tmp_path, train__learning_rate=0.01, **plan)
    done = faulty(fault, 1, 4, "train", cfg, "--out", tmp_path / "out", ranks=2)
    assert done.code == 0, done.err
    assert "step 4: the gradient norm is not finite; the update is skipped on all ranks" in done.err
    lines = metrics(tmp_path / "out")
    assert [line.get("skipped", False) for line in lines] == [False, False, False, True]
    assert lines[3]["grad_norm"] is None
    # the skipped step changed nothing (a constant rate, so that the number of steps does not matter)
    cfg4 = configuration(tmp_path, train__steps=4, train__schedule="constant", **plan)
    assert faulty(fault, 1, 4, "train", cfg4, "--out", tmp_path / "four", ranks=2).code == 0
    cfg3 = configuration(tmp_path, train__steps=3, train__schedule="constant", **plan)
    assert hpcpar("train", cfg3, "--out", tmp_path / "three", ranks=2).code == 0
    assert same_weights(tmp_path / "three", tmp_path / "four")


@pytest.mark.parametrize(
    "plan, last",
    (({"plan__dp": 2}, 4), ({"plan__pp": 2, "plan__schedule": "pipedream-2bw", "run__checkpoint_every": 5}, 5)),
    ids=("dp", "2bw"),
)
def test_a_gradient_that_is_not_finite_stops_the_run_on_all(tmp_path, plan, last):
    """Its update is skipped, the state is saved, and who has looked at it may go on."""
    cfg = configuration(tmp_path, train__nonfinite="stop", train__steps=6, **plan)
    out = tmp_path / "out"
    done = faulty("nan", 1, 4, "train", cfg, "--out", out, ranks=2)
    assert done.code == 1 and len(done.said) == 1 and "Traceback" not in done.err, done.err
    assert "step 4: the gradient norm is not finite" in done.said[0] and f"saved after step {last}" in done.said[0]
    assert [line.get("skipped", False) for line in metrics(out)] == [s == 4 for s in range(1, last + 1)]
    found = checkpoint.open(checkpoint.newest(out / "checkpoints"))
    assert found.step == last and set(found.fields["applied"].values()) == {last - 1}
    assert json.loads((out / "status.json").read_text())["state"] == "failed"
    assert hpcpar("train", cfg, "--out", out, "--resume", ranks=2).code == 0
    assert [line["step"] for line in metrics(out)] == list(range(1, 7))


def test_a_batch_without_labels_changes_nothing(tmp_path):
    cfg = configuration(tmp_path, data__ignore=list(range(256)), plan__pp=2)
    done = hpcpar("train", cfg, "--out", tmp_path / "out", ranks=2)
    assert done.code == 0, done.err
    assert [line["loss"] for line in metrics(tmp_path / "out")] == [0.0] * 4
    cfg = configuration(tmp_path, train__steps=0, plan__pp=2)
    assert hpcpar("train", cfg, "--out", tmp_path / "none", ranks=2).code == 0
    assert same_weights(tmp_path / "out", tmp_path / "none")
    shas = [json.loads((tmp_path / n / "summary.json").read_text())["weights_sha256"] for n in ("out", "none")]
    assert shas[0] == shas[1]
