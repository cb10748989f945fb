"""`hpcpar submit` and `hpcpar jobs` without a Slurm: refusals before anything is queued, the script, the list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.cli.main import main

SMALL = """
[model]
layers = 4
width = 16
heads = 2
context = 16
[train]
batch = 8
[plan]
pp = 2
"""


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "a [b] c.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "2", "--ntasks-per-node", "2"], ["needs 2 ranks", "gives 4"]),
        (["--set", "plan.pp=8"], ["layers = 4", "8 stages"]),
        (["--set", "plan.microbatches=3"], ["train.batch = 8", "3"]),
        (["--set", "data.source=/nowhere/x.txt"], ["/nowhere/x.txt", "not there"]),
        (["--site", "perlmutter"], ["perlmutter", "--account"]),
        (["--site", "perlmutter", "--account", "m1", "--ntasks-per-node", "8"], ["--ntasks-per-node 8", "4 ranks"]),
        (["--time", "1"], ["60 s", "120 s", "--notice"]),
        (["--time", "soon"], ["--time soon"]),
        (["--site", "nowhere"], ["nowhere", "generic-cpu"]),
        (["--sweep", "plan.pp=1,3,8"], ["plan.pp=8: ", "8 stages", "1 of 3 points", "nothing is queued"]),
        (["--sweep", "plan.pq=1,2"], ["plan.pq"]),
        (["--set", "plan.pp=1", "--set", "plan.offload={parameters = true, device_mb = 0.001}"], ["device_mb"]),
    ],
)
def test_refused_before_anything_is_queued(config, tmp_path, capsys, options, words):
    assert main(["submit", str(config), "--out", str(tmp_path / "out"), *options]) == 2
    found = capsys.readouterr()
    assert all(w in found.err for w in words), found.err
    assert found.out == "" and not (tmp_path / "out").exists()


def test_infeasible_points_are_named_with_their_reasons(config, tmp_path, capsys):
    assert main(["submit", str(config), "--out", str(tmp_path / "out"), "--sweep", "plan.pp=2,8", "--sweep", "plan.dp=1,3"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines[:-1]] == ["plan.pp=2 plan.dp=3", "plan.pp=8 plan.dp=1", "plan.pp=8 plan.dp=3"]
    assert "train.batch = 8" in lines[0] and "8 stages" in lines[1] and "3 of 4 points" in lines[-1]


def test_no_slurm(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", str(config), "--out", str(tmp_path / "out")]) == 2
    assert "sbatch is not on PATH" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def script(capsys, *arguments) -> str:
    assert main(["submit", *map(str, arguments), "--dry-run"]) == 0
    return capsys.readouterr().out


def test_the_script_is_bash_and_asks_for_what_was_asked_for(config, tmp_path, capsys):
    out = tmp_path / "out [1] %x 'q'"
    text = script(
        capsys, config, "--out", out, "--nodes", 2, "--time", "2:00:00", "--notice", 300, "--site", "perlmutter", "--account", "m1"
    )
    directives = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    for wanted in (
        "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=32", "--time=2:00:00", "--signal=USR1@300", "--open-mode=append", "--requeue",
        "--constraint=gpu", "--gpus-per-node=4", "--account=m1",
    ):  # fmt: skip
        assert wanted in directives
    assert "export MPICH_GPU_SUPPORT_ENABLED=1" in text and "module load PrgEnv-gnu" in text and "--site perlmutter" in text
    assert "%%x" in next(d for d in directives if d.startswith("--output"))  # else Slurm would read a pattern
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    assert not out.exists()
    case = text[text.index("case ") : text.index("esac") + 4] + '\nprintf "%s|" "$folder" "$config" "$ranks"'
    said = subprocess.run(["bash", "-c", case], text=True, capture_output=True).stdout
    assert said == f"{out}|{out}/submitted.toml|2|"


def test_points_of_one_shape_are_one_array(config, tmp_path, capsys):
    text = script(
        capsys, config, "--out", tmp_path / "out", "--ntasks-per-node", 2, "--sweep", "plan.pp=2,4", "--sweep", "plan.microbatches=2,4"
    )
    calls = [line for line in text.splitlines() if line.startswith("# sbatch")]
    assert [c.split()[3:6] for c in calls] == [
        ["--nodes=1", "--ntasks-per-node=2", "--array=0,1"],
        ["--nodes=2", "--ntasks-per-node=2", "--array=2,3"],
    ]
    assert "#SBATCH --nodes" not in text
    for i, (ranks, name) in enumerate(
        [(2, "plan.pp=2,plan.microbatches=2"), (2, "plan.pp=2,plan.microbatches=4"), (4, "plan.pp=4,plan.microbatches=2")]
    ):
        assert f"  {i}) folder={tmp_path}/out/{name} " in text
        assert f"ranks={ranks} ;;" in text


def slurm(folder: Path, **answers: str) -> str:
    """A PATH with commands that answer; sbatch keeps what it was called with."""
    folder.mkdir()
    for name, answer in answers.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $@" >> "{folder}/calls"\n{answer}\n')
        path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_what_sbatch_refuses_is_said(config, tmp_path, capsys, monkeypatch):
    path = slurm(tmp_path / "bin", sbatch="echo 'sbatch: error: invalid account' >&2; exit 1", squeue="true")
    monkeypatch.setenv("PATH", path)
    assert main(["submit", str(config), "--out", str(tmp_path / "out")]) == 2
    assert "sbatch refused" in (said := capsys.readouterr().err) and "invalid account" in said
    assert not (tmp_path / "out" / "submitted.json").exists()


def test_the_job_is_said_and_kept(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", slurm(tmp_path / "bin", sbatch="echo '17;cluster'", squeue="true"))
    out = tmp_path / "out"
    assert main(["submit", str(config), "--out", str(out), "--set", "train.steps=7", "--sweep", "train.seed=1,2"]) == 0
    assert capsys.readouterr().out == "17\n"
    kept = json.loads((out / "train.seed=2" / "submitted.json").read_text())
    assert (kept["job"], kept["settings"], kept["ranks"]) == ("17_1", ["train.seed=2"], 2)
    assert "steps = 7\n" in (out / "train.seed=2" / "submitted.toml").read_text()
    monkeypatch.setenv("PATH", slurm(tmp_path / "again", sbatch="echo 18", squeue="echo '17_1|PENDING|Resources'"))
    assert main(["submit", str(config), "--out", str(out), "--sweep", "train.seed=1,2"]) == 2
    assert "job 17_1 of" in capsys.readouterr().err
    assert "sbatch" not in (tmp_path / "again" / "calls").read_text()


# what lies in the folder, what the queue and the controller say -> state, words of the reason
STATES = {
    "queued": ({"submitted": {"job": "5"}}, "5|PENDING|Resources", "", "queued", "Resources"),
    "running": ({"submitted": {"job": "5"}, "status": {"state": "running", "step": 3}}, "5|RUNNING|None", "", "running", ""),
    "requeued": ({"submitted": {"job": "5"}, "status": {"state": "requeue", "reason": "a"}}, "5|PENDING|BeginTime", "", "requeued", "a"),
    "ended": ({"status": {"state": "ended", "reason": "done"}}, "", "", "ended", "done"),
    "failed": ({"status": {"state": "failed", "reason": "rank 1 failed"}, "submitted": {"job": "5"}}, "", "", "failed", "rank 1"),
    "stopped": ({"status": {"state": "requeue", "reason": "SIGTERM"}}, "", "", "stopped", "SIGTERM"),
    "cancelled": ({"submitted": {"job": "5"}}, "", "JobId=5 JobState=CANCELLED ExitCode=0:15 Restarts=0", "cancelled", "0:15"),
    "lost": ({"submitted": {"job": "5"}, "status": {"state": "running"}}, "", "", "lost", "killed"),
    "by hand": ({"status": {"state": "running"}}, "", "", "running", ""),
    "before there was a status": ({"summary": {}, "metrics": {"step": 4, "loss": 2.0}}, "", "", "ended", "done"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "queue", "controller", "state", "why"), STATES.values(), ids=STATES)
def test_states(tmp_path, capsys, monkeypatch, files, queue, controller, state, why):
    run = tmp_path / "runs" / "x [1]"
    run.mkdir(parents=True)
    for name, fields in files.items():
        (run / (f"{name}.json" if name != "metrics" else "metrics.jsonl")).write_text(json.dumps(fields) + "\n")
    monkeypatch.setenv("PATH", slurm(tmp_path / "bin", squeue=f"echo '{queue}'", scontrol=f"echo '{controller}'"))
    assert main(["jobs", str(tmp_path / "runs"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["folder"], row["state"]) == ("x [1]", state) and why in row["reason"]


def test_last_step_and_loss_of_a_line_cut_short(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "loss": 1 / n}) + "\n" for n in range(1, 900)) + '{"step": 900, "lo'
    )
    (tmp_path / "config.toml").write_text("[train]\nsteps = 1000\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "status.json").write_text("{}")
    assert main(["jobs", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["step"], row["steps"], row["loss"]) == (899, 1000, 1 / 899)
    assert main(["jobs", str(tmp_path)]) == 0
    assert "899/1000" in capsys.readouterr().out
    assert main(["jobs", str(tmp_path / "none")]) == 2


def test_launch_says_what_it_needs(capsys):
    assert main(["launch"]) == 2
    assert "after --" in capsys.readouterr().err
    assert main(["launch", "--functions"]) == 0
    assert "run_job" in Path(capsys.readouterr().out.strip()).read_text()


def test_importing_the_launcher_needs_no_mpi():
    code = "import sys, hpcpar.launch.submit, hpcpar.launch.jobs; assert 'mpi4py' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
