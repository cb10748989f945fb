"""Whole runs through `hpcpar submit` and a real Slurm of two nodes: the same bits as mpirun's, sweeps, ends, and a site without PMI."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import BIN, compare, configuration, hpcpar, metrics

from hpcpar.machine import Machine

ROOT = Path(__file__).parents[2]
SHARED = {"run__wait": "yield"}  # two nodes of one machine: each rank thinks that it has it alone
FOR_EVER = 1000000  # steps
pytestmark = pytest.mark.timeout(400)


def submit(slurm, config: Path, out: Path, *options: str) -> str:
    """`hpcpar submit`; returns the job."""
    done = hpcpar_in(slurm, "submit", config, "--out", out, "--cpus-per-task", "1", *options)
    assert done.code == 0, done.err
    return done.out.split()[-1]


def hpcpar_in(slurm, *arguments):
    """hpcpar with this Slurm's commands."""
    return hpcpar(*arguments, **slurm.env)


def listed(slurm, folder: Path) -> dict[str, dict]:
    """`hpcpar jobs`, by folder."""
    return {row["folder"]: row for row in json.loads(hpcpar_in(slurm, "jobs", folder, "--json").out)}


def log(folder: Path) -> str:
    return "\n".join(p.read_text() for p in sorted(folder.glob("job-*.log")))


def until(there, timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def gone(slurm, job: str) -> None:
    """No process of the job is left."""
    until(lambda: not slurm.ranks(job))


@pytest.fixture(scope="module", autouse=True)
def limited(slurm, tmp_path_factory):
    """A run that its time limit interrupts, started before the others because Slurm looks at limits every half a minute."""
    folder = tmp_path_factory.mktemp("limited")
    slow = {"slow": {"0": 20.0}}  # few steps until the signal, which the run without an interruption makes quickly
    config = configuration(folder, plan__pp=2, train__steps=FOR_EVER, train__schedule="constant", train__emulate=slow, **SHARED)
    job = submit(slurm, config, folder / "run", "--nodes", "2", "--time", "1", "--notice", "20")
    return folder, job


def test_two_nodes_give_the_bits_of_mpirun(slurm, tmp_path):
    folder = tmp_path / "a [b] c %d"
    folder.mkdir()
    config = configuration(folder, plan__pp=2, plan__dp=2, plan__microbatches=2, **SHARED)
    job = submit(slurm, config, folder / "run", "--nodes", "2", "--ntasks-per-node", "2")
    waiting = listed(slurm, folder)["run"]
    assert waiting["job"] == job and waiting["state"] in ("queued", "running")
    direct = hpcpar("train", config, "--out", folder / "direct", ranks=4)
    assert direct.code == 0, direct.err
    found = slurm.wait(job)
    assert (found["JobState"], found["NodeList"]) == ("COMPLETED", "n[1-2]"), log(folder / "run")
    said = log(folder / "run")
    assert "launch: srun --mpi=" in said and "4 ranks (dp 2 x pp 2" in said
    assert "ranks 0-3" in said and "1 thread each" in said  # both nodes are this machine
    differences = compare(folder / "run", folder / "direct")
    assert (differences["loss"], differences["grad_norm"], differences["weights"]) == (0, 0, 0)
    ended = listed(slurm, folder)["run"]
    assert (ended["state"], ended["step"], ended["steps"]) == ("ended", 4, 4)


def test_a_sweep_is_an_array_and_one_table(slurm, tmp_path):
    config = configuration(tmp_path, plan__pp=2, plan__microbatches=2, **SHARED)
    out = tmp_path / "sweep"
    job = submit(slurm, config, out, "--nodes", "2", "--sweep", "plan.schedule=gpipe,naive")
    for i in range(2):
        assert slurm.wait(f"{job}_{i}")["JobState"] == "COMPLETED", log(out)
    rows = listed(slurm, out)
    assert {name: (r["job"], r["state"]) for name, r in rows.items()} == {
        "plan.schedule=gpipe": (f"{job}_0", "ended"),
        "plan.schedule=naive": (f"{job}_1", "ended"),
    }
    table = subprocess.run(
        [sys.executable, ROOT / "analysis" / "sweep.py", out, "--csv", tmp_path / "table.csv"], capture_output=True, text=True
    )
    assert table.returncode == 0, table.stderr
    head, *lines = (tmp_path / "table.csv").read_text().splitlines()
    assert head.startswith("plan.schedule,ranks,") and [line.split(",")[:2] for line in lines] == [["gpipe", "2"], ["naive", "2"]]


def test_the_scripts_of_the_clone(slurm, tmp_path):
    """jobs/*.sbatch as a user gives them to sbatch: rates of two nodes, a sweep, one run, and the analysis when they are done."""
    folder = tmp_path / "a [b] c"
    folder.mkdir()
    config = configuration(folder, plan__microbatches=2, **SHARED)
    machine = sbatch(slurm, "bench", "--ntasks-per-node=1", folder / "machine.toml")
    sweep = sbatch(slurm, "scaling", "--array=0,1", "--ntasks=2", config, folder / "sweep")
    one = sbatch(slurm, "train", "--nodes=2", "--ntasks=2", config, folder / "one", "--set", "plan.pp=2")
    plans = [folder / "sweep" / "plan.dp=1,plan.pp=1", folder / "sweep" / "plan.dp=1,plan.pp=2"]
    analysis = sbatch(slurm, "analyse", f"--dependency=afterok:{sweep}:{one}", *plans)
    for job in (machine, f"{sweep}_0", f"{sweep}_1", one, analysis):
        found = slurm.wait(job)
        assert found["JobState"] == "COMPLETED", (slurm.folder / f"{job}.log").read_text()
    measured = Machine.read(folder / "machine.toml")
    assert (measured.ranks, measured.compute.threads) == (2, 1)
    for plan in plans:
        assert (plan / "timeline.png").exists() and json.loads((plan / "analysis.json").read_text())
    differences = compare(folder / "one", plans[1])
    assert (differences["loss"], differences["weights"]) == (0, 0)


def sbatch(slurm, script: str, *arguments) -> str:
    """Give a script of jobs/ to sbatch, from the folder of the clone; options begin with --, what follows them is the script's."""
    split = next(i for i, a in enumerate(arguments) if not str(a).startswith("--"))
    options, rest = arguments[:split], arguments[split:]
    named = "%A_%a" if any("--array" in o for o in options) else "%j"
    command = [slurm.programs["sbatch"], "--parsable", f"--output={slurm.folder}/{named}.log", *options, ROOT / "jobs" / f"{script}.sbatch"]
    env = {**slurm.env, "PATH": f"{BIN}{os.pathsep}{slurm.env['PATH']}"}
    done = subprocess.run([str(a) for a in (*command, *rest)], env=env, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_killed_rank_ends_the_job(slurm, tmp_path):
    config = configuration(tmp_path, plan__pp=2, train__steps=100000, train__emulate={"F": 0.005, "I": 0.005, "W": 0.005}, **SHARED)
    job = submit(slurm, config, tmp_path / "run", "--nodes", "2")
    until(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and metrics(tmp_path / "run"))
    os.kill(slurm.ranks(job)[1], signal.SIGKILL)
    found = slurm.wait(job)
    assert (found["JobState"], found["Restarts"]) == ("FAILED", "0"), log(tmp_path / "run")
    gone(slurm, job)
    row = listed(slurm, tmp_path)["run"]
    assert row["state"] in ("failed", "lost") and row["step"] >= 1
    assert "Killed" in log(tmp_path / "run")


def test_scancel(slurm, tmp_path):
    config = configuration(tmp_path, plan__pp=2, train__steps=100000, train__emulate={"F": 0.005, "I": 0.005, "W": 0.005}, **SHARED)
    job = submit(slurm, config, tmp_path / "run", "--nodes", "2")
    until(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and metrics(tmp_path / "run"))
    again = hpcpar_in(slurm, "submit", config, "--out", tmp_path / "run", "--nodes", "2")
    assert again.code == 2 and f"job {job}" in again.said[0] and "still queued or running" in again.said[0]
    slurm.says("scancel", job)
    found = slurm.wait(job)
    assert (found["JobState"], found["Restarts"]) == ("CANCELLED", "0"), log(tmp_path / "run")
    gone(slurm, job)
    assert listed(slurm, tmp_path)["run"]["state"] in ("cancelled", "stopped")


def test_a_site_without_pmi(slurm_without_pmi, tmp_path):
    """srun starts two processes that know nothing of each other; the MPI library's own launcher finds the hosts of the allocation."""
    slurm = slurm_without_pmi
    assert "pmi2" not in slurm.says("srun", "--mpi=list")
    config = configuration(tmp_path, plan__pp=2, **SHARED)
    job = submit(slurm, config, tmp_path / "run", "--nodes", "2")
    found = slurm.wait(job)
    said = log(tmp_path / "run")
    assert found["JobState"] == "COMPLETED", said
    assert "launch: srun" not in said and " -n 2" in said and "2 ranks" in said
    none = submit(slurm, config, tmp_path / "none", "--nodes", "2", "--site", str(site(tmp_path)))
    assert slurm.wait(none)["ExitCode"] in ("2:0", "143:0")  # 143: srun ended the other process before it could refuse too
    assert "started 2 processes, but each sees a world of 1" in log(tmp_path / "none")


def site(folder: Path) -> Path:
    """A site that names a launch line which does not fit its MPI."""
    path = folder / "plain.toml"
    path.write_text('about = "srun, whatever it does"\nlaunch = ["srun"]\n')
    return path


def test_a_time_limit_is_survived(slurm, limited):
    """The signal before the limit, the requeue and the resumption are Slurm's; then the same bits as without them."""
    folder, job = limited
    run = folder / "run"
    slurm.wait(job, "PENDING")  # again
    assert f"job {job} is requeued, to go on from step" in log(run)
    assert listed(slurm, folder)["run"]["state"] == "requeued"
    steps = metrics(run)[-1]["step"] + 3
    described = (run / "submitted.toml").read_text()
    (run / "submitted.toml").write_text(described.replace(f"steps = {FOR_EVER}\n", f"steps = {steps}\n"))
    slurm.says("scontrol", "update", f"JobId={job}", "TimeLimit=20")
    slurm.hurry(job)
    found = slurm.wait(job)
    assert (found["JobState"], found["Restarts"]) == ("COMPLETED", "1"), log(run)
    assert f"after step {steps - 3}" in log(run)
    assert [line["step"] for line in metrics(run)] == list(range(1, steps + 1))  # each once
    whole = configuration(folder, plan__pp=2, train__steps=steps, train__schedule="constant", **SHARED)
    assert hpcpar("train", whole, "--out", folder / "whole", ranks=2).code == 0
    differences = compare(run, folder / "whole")
    assert (differences["loss"], differences["grad_norm"], differences["weights"]) == (0, 0, 0)
