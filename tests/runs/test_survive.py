"""Ranks that are killed while the others go on; Open MPI with ULFM. Elsewhere the option is refused before step 1."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from launch import HERE, compare, configuration, hpcpar, metrics, mpirun

from hpcpar import trace

PROGRAM = (str(HERE / "dying.py"),)
FAULT_TOLERANT = ("--with-ft", "ulfm", "--oversubscribe")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SMALL = {
    "model__layers": 1, "model__dropout": 0.1, "train__batch": 12, "train__steps": 8, "train__warmup": 3, "train__schedule": "cosine",
    "run__checkpoint_every": 2, "run__keep_checkpoints": 9, "run__survive": "shrink", "plan__dp": 3,
}  # fmt: skip
SHOWS = "import sys; from hpcpar.comm.survival import unsupported; sys.stdout.write(unsupported())"


def why_not() -> str:
    """Why this MPI cannot survive the loss of a rank, asked of a launch that would."""
    command = [mpirun(), *FAULT_TOLERANT, "-n", "1", sys.executable, "-c", SHOWS]
    if "Open MPI" not in subprocess.run([mpirun(), "--version"], capture_output=True, text=True).stdout:
        return "this MPI is not Open MPI"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **AS_ROOT}, timeout=60)
    return done.stdout or ("" if done.returncode == 0 else f"no fault-tolerant launch: {done.stderr.strip()[-200:]}")


REASON = why_not()
survives = pytest.mark.skipif(bool(REASON), reason=f"needs Open MPI with ULFM: {REASON}")


def dying(deaths, cfg, out, *flags, ranks=3, options=FAULT_TOLERANT):
    return hpcpar(deaths, "train", cfg, "--out", out, *flags, ranks=ranks, program=PROGRAM, options=options, timeout=240, **AS_ROOT)


def fresh(tmp_path, name, source, step, cfg, ranks):
    """A run on fewer ranks that resumes from a checkpoint of another run, with that run's description."""
    out = tmp_path / name
    (out / "checkpoints").mkdir(parents=True)
    shutil.copytree(source / "checkpoints" / f"step{step:08d}", out / "checkpoints" / f"step{step:08d}")
    done = dying("", cfg, out, "--resume", ranks=ranks)
    assert done.code == 0, done.err
    return out


def lines(folder, first, last):
    return [{k: v for k, v in x.items() if k != "seconds"} for x in metrics(folder) if first <= x["step"] <= last]


@survives
@pytest.mark.parametrize("settings", ({}, pytest.param({"plan__zero": 3}, marks=pytest.mark.long)), ids=("replicas", "zero 3"))
def test_the_others_go_on_and_so_does_the_last(tmp_path, settings):
    """3 ranks -> 2 in step 3 -> 1 in step 6; each part is, bit for bit, a fresh run of that many ranks from the same checkpoint."""
    cfg = configuration(tmp_path, **SMALL, **settings)
    out = tmp_path / "out"
    done = dying("1@3@forward,2@3@late,0@6@forward", cfg, out)
    assert done.code == 0, done.err
    assert "lost so far: 1); going on from the newest checkpoint on 2" in done.err
    assert "lost so far: 0, 1); going on from the newest checkpoint on 1" in done.err
    assert [line["step"] for line in metrics(out)] == list(range(1, 9))
    plans = {
        2: {"plan__dp": 2, "plan__accumulate": 2},
        1: {"plan__dp": 1, "plan__accumulate": 4},
    }
    two = fresh(tmp_path, "two", out, 2, configuration(tmp_path, **{**SMALL, **settings, **plans[2]}), 2)
    assert lines(two, 3, 4) == lines(out, 3, 4)
    one = fresh(tmp_path, "one", two, 4, configuration(tmp_path, **{**SMALL, **settings, **plans[1]}), 1)
    assert lines(one, 5, 8) == lines(out, 5, 8)
    assert compare(one, out)["weights"] == 0
    assert json.loads((out / "summary.json").read_text())["plan"]["dp"] == 1
    assert (
        json.loads((one / "summary.json").read_text())["weights_sha256"] == json.loads((out / "summary.json").read_text())["weights_sha256"]
    )
    found = trace.open(out)
    assert found.ranks == 1 and not found.missing
    assert set(found.events(0)["step"]) >= {5, 6, 7, 8}
    assert found.description["config"]["plan"]["dp"] == 1
    assert (found.description["mpi"]["ranks"], found.description["mpi"]["lost"]) == (1, [0, 1])
    kept = {p.name for p in out.glob("trace.0000*.h5")}
    assert {"trace.00000.until-step2.h5", "trace.00001.until-step2.h5", "trace.00000.until-step4.h5"} <= kept


@survives
@pytest.mark.parametrize(
    "deaths, left",
    [
        ("0@4@committed", 2),
        ("2@4@writing", 2),
        ("0@8@end", 2),
        ("0@8@ended", 3),
        ("1@3@forward,2@3@forward", 1),
        ("1@3@forward,2@3@shrinking", 1),
        ("1@3@forward,0@3@restoring", 1),
        ("1@1@forward", 2),
    ],
)
@pytest.mark.long
def test_wherever_it_is_lost(tmp_path, deaths, left):
    """While checkpoints are written, at the end, two together, one more while the world shrinks or the state is read, before step 2."""
    out = tmp_path / "out"
    done = dying(deaths, configuration(tmp_path, **SMALL), out)
    assert done.code == 0, done.err
    assert [line["step"] for line in metrics(out)] == list(range(1, 9))
    assert trace.open(out).ranks == left
    whole = tmp_path / "whole"
    assert dying("", configuration(tmp_path, **{**SMALL, "train__precision": "float64"}), whole).code == 0
    assert np.allclose([x["loss"] for x in metrics(out)], [x["loss"] for x in metrics(whole)], rtol=1e-4)


@survives
@pytest.mark.long
@pytest.mark.parametrize("turn", range(10))
def test_at_a_random_step(tmp_path, turn):
    rank, step = random.randrange(3), random.randrange(1, 9)
    out = tmp_path / "out"
    done = dying(f"{rank}@{step}@forward", configuration(tmp_path, **SMALL), out)
    assert done.code == 0, (rank, step, done.err)
    assert [line["step"] for line in metrics(out)] == list(range(1, 9)), (rank, step)


@survives
@pytest.mark.parametrize("deaths", ("1@3@forward,0@3@forward",))
def test_a_batch_that_those_who_are_left_cannot_share_ends_the_run(tmp_path, deaths):
    """20 samples over 5 ranks go on over 4, and not over 3; the checkpoints stay."""
    out = tmp_path / "out"
    done = dying(deaths, configuration(tmp_path, **{**SMALL, "train__batch": 20, "plan__dp": 5}), out, ranks=5)
    assert done.code == 2, done.err
    assert "train.batch = 20 cannot be cut into equal parts for 3 ranks" in done.err
    assert "Traceback" not in done.err
    assert (out / "checkpoints" / "step00000002").is_dir()


@survives
def test_a_failure_that_is_no_loss_still_ends_all(tmp_path):
    """An exception on a rank, behind a loss that was survived."""
    cfg = configuration(tmp_path, **SMALL)
    done = dying("1@3@forward,2@6@raise", cfg, tmp_path / "out")
    assert done.code == 1, done.err
    assert "on 2\n" in done.err and "ValueError: planted" in done.err and "failed in step 6" in done.err
    assert len(metrics(tmp_path / "out")) < 8


@survives
def test_without_the_option_a_lost_rank_ends_all(tmp_path):
    """The launch would go on, the run does not."""
    done = dying("1@3@forward", configuration(tmp_path, **{**SMALL, "run__survive": "none"}), tmp_path / "out")
    assert done.code != 0
    assert len(metrics(tmp_path / "out")) < 8


def test_an_mpi_or_a_launch_that_cannot_is_refused(tmp_path):
    """MPICH; Open MPI without --with-ft."""
    out = tmp_path / "out"
    options = ("--oversubscribe",) if not REASON else ()
    done = hpcpar("train", configuration(tmp_path, **SMALL), "--out", out, ranks=3, options=options, **AS_ROOT)
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert 'run.survive = "shrink": ' in done.said[0] and "mpirun --with-ft ulfm" in done.said[0]
    assert not out.exists()
