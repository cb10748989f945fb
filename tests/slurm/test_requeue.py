"""What a script does with the end of its ranks, under a real Slurm: who is requeued, who is not, and what the log says."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from hpcpar.launch.script import functions

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(240)


def start(slurm, folder: Path, saves: str) -> str:
    """Submit the functions of every script around ranks that wait for a signal; returns the job once they wait."""
    folder.mkdir()
    script = folder / "job.sh"
    header = "#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append --time=5"
    run = f'run_job "{folder}" srun --mpi=none --kill-on-bad-exit=1 bash "{HERE}/rank.sh" "{folder}" {saves}'
    script.write_text(f"#!/bin/bash\n{header}\n{functions()}\n{run}\n")
    command = [slurm.programs["sbatch"], "--parsable", f"--output={folder}/job.log", str(script)]
    done = subprocess.run(command, env=slurm.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    until(lambda: (folder / "waiting").exists())
    time.sleep(0.3)  # the other rank's trap; what it does not catch still ends the step
    return done.stdout.strip()


def until(there, timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_stopped_and_saved_is_requeued_and_goes_on(slurm, tmp_path):
    folder = tmp_path / "a [b] c"
    job = start(slurm, folder, "yes")
    slurm.says("scancel", "--signal=USR1", job)  # as --signal does before the limit: to the ranks, not to the script
    slurm.hurry(job)
    found = slurm.wait(job)
    log = (folder / "job.log").read_text()
    assert (found["JobState"], found["ExitCode"], found["Restarts"]) == ("COMPLETED", "0:0", "1"), log
    assert log.count("waiting") == 2 and "started again from step00000003" in log  # the log of the first start is still there
    assert f"job {job} is requeued, to go on from step00000003" in log


def test_a_rank_that_leaves_late_does_not_hide_it(slurm, tmp_path):
    job = start(slurm, tmp_path / "run", "slow")
    slurm.says("scancel", "--signal=USR1", job)
    slurm.hurry(job)
    assert (slurm.wait(job)["JobState"], slurm.state(job)["Restarts"]) == ("COMPLETED", "1")
    assert "Terminated" in (tmp_path / "run" / "job.log").read_text()


def test_without_a_new_checkpoint_it_would_go_round_for_ever(slurm, tmp_path):
    job = start(slurm, tmp_path / "run", "no")
    slurm.says("scancel", "--signal=USR1", job)
    found = slurm.wait(job)
    assert (found["JobState"], found["ExitCode"], found["Restarts"]) == ("FAILED", "85:0", "0")
    assert "stopped before its first new checkpoint after the start; it is not requeued" in (tmp_path / "run" / "job.log").read_text()


def test_preempted_ranks_are_requeued(slurm, tmp_path):
    """Preemption with a grace time: Slurm sends TERM to the steps, and not to the script."""
    job = start(slurm, tmp_path / "run", "yes")
    slurm.says("scancel", "--signal=TERM", job)
    slurm.hurry(job)
    found = slurm.wait(job)
    assert (found["JobState"], found["Restarts"]) == ("COMPLETED", "1")


def test_scancel_ends_it(slurm, tmp_path):
    job = start(slurm, tmp_path / "run", "yes")
    slurm.says("scancel", job)
    found = slurm.wait(job)
    until(lambda: slurm.state(job).get("EndTime") and not slurm.says("squeue", "--noheader", f"--jobs={job}", "--states=all").count("CG"))
    assert (found["JobState"], found["Restarts"]) == ("CANCELLED", "0")
    assert (tmp_path / "run" / "checkpoints").exists()  # the ranks had the time to save
    assert "requeued, to go on" not in (tmp_path / "run" / "job.log").read_text()
