"""The doctor: says what is there, survives what is not."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.cli import doctor as verb
from hpcpar.measure import doctor, launcher_facts


def call(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = "import argparse, sys; from hpcpar.cli import doctor; p = argparse.ArgumentParser(); doctor.add(p.add_subparsers()); "
    code += "a = p.parse_args(sys.argv[1:]); sys.exit(a.func(a))"
    command = [sys.executable, "-c", code, "doctor", *words]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=240)


def test_json_holds_every_section() -> None:
    child = call("--json")
    found = json.loads(child.stdout)
    assert child.returncode == 0 and list(found) == ["hpcpar", "cpu", "numpy", "mpi", "launcher", "gpu", "hdf5", "slurm"]
    assert found["numpy"]["blas"][0]["threads"] >= 1 and found["hdf5"]["h5py"]
    assert found["mpi"]["standard"].split(".")[0] in "345" and found["mpi"]["threads"] == "multiple"
    assert isinstance(found["mpi"]["gpu_aware"], bool) and found["mpi"]["gpu_reason"] and Path(found["mpi"]["path"]).exists()
    if found["launcher"]["path"]:
        assert found["launcher"]["matches"] is True, found["launcher"]


def test_text_is_aligned_and_narrow(standin: Path) -> None:
    child = call(PYTHONPATH=str(standin))
    lines = child.stdout.splitlines()
    assert child.returncode == 0 and any(line.startswith("GPU 1") for line in lines)
    for line in lines:
        assert len(line) <= 80 or " " not in line[verb.LABEL :], line
        assert line[verb.LABEL - 1] == " " and line[verb.LABEL] != " "


def test_without_mpi_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('libmpi.so.12: cannot open shared object file')")
    child = call(PYTHONPATH=str(tmp_path))
    assert child.returncode == 0
    assert "none: ImportError: libmpi.so.12: cannot open" in " ".join(child.stdout.split()) and "pip install" in child.stdout


def test_an_mpi_that_kills_the_process_is_survived(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("import os, sys; sys.stderr.write('Fatal error in MPI_Init\\n'); sys.stderr.flush(); os._exit(15)")
    child = call("--json", PYTHONPATH=str(tmp_path))
    assert child.returncode == 0 and json.loads(child.stdout)["mpi"]["reason"] == (
        "starting MPI ended the process (exit 15): Fatal error in MPI_Init"
    )


def test_only_the_first_rank_prints() -> None:
    assert verb.run(argparse.Namespace(json=False)) == 0 if verb._rank() else True
    child = call(PMI_RANK="1", PMI_SIZE="2")
    assert child.returncode == 0 and child.stdout == ""


def launcher(folder: Path, body: str) -> str:
    path = folder / "mpiexec"
    path.write_text(f"#!{sys.executable}\nimport subprocess, sys\nn, command = int(sys.argv[2]), sys.argv[3:]\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_launcher_of_another_mpi_is_found_out(tmp_path: Path) -> None:
    path = launcher(tmp_path, "for i in range(n): subprocess.run(command)")  # n processes, each alone
    assert launcher_facts.check(path) == (False, "belongs to another MPI: 2 processes each see a world of 1")


def test_a_launcher_that_fails_says_why(tmp_path: Path) -> None:
    path = launcher(tmp_path, "sys.stderr.write('no slots\\n'); sys.exit(3)")
    assert launcher_facts.check(path) == (False, "2 processes could not be started (exit 3): no slots")
    path = launcher(tmp_path, "import time; time.sleep(60)")
    assert launcher_facts.check(path, timeout_s=0.5) == (False, "2 processes did not end within 0.5 s")
    assert launcher_facts.check(str(tmp_path / "none"))[1].startswith("cannot be started")


def test_ranges() -> None:
    assert doctor.ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8" and doctor.ranges([]) == ""


def test_wrapping_keeps_long_paths_whole() -> None:
    path = "/a" * 60
    assert verb.text([("MPI", f"x {path}"), ("", path)]) == [f"{'MPI':<15}x", f"{'':<15}{path}", f"{'':<15}{path}"]


@pytest.mark.parametrize("missing", ["h5py"])
def test_without_hdf5_it_says_so(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert "reason" in doctor.hdf5_facts()


def test_a_slurm_that_fails_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho 'srun: fatal: Could not establish a configuration source' >&2\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert doctor.slurm_facts()["version"] == "installed, but srun fails: fatal: Could not establish a configuration source"
    srun.write_text("#!/bin/sh\necho slurm 22.05.8\n")
    assert doctor.slurm_facts()["version"] == "22.05.8"
