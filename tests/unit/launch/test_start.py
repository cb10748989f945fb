"""Which launcher is tried, in which order, and what is said where none works; threads and places of ranks."""

from __future__ import annotations

import os
import sys

import pytest

from hpcpar.errors import PlanError
from hpcpar.launch import start
from hpcpar.launch.site import Site
from hpcpar.run import binding, settings

SITE = Site(about="any")
JOB = {"SLURM_JOB_ID": "1"}


@pytest.fixture
def machine(monkeypatch):
    """A machine with MPICH, srun and its own mpirun; returns what can be changed."""
    have = {"kind": "MPICH", "plugins": ("none", "pmi2", "pmix"), "mpirun": "/opt/bin/mpirun", "srun": "/usr/bin/srun"}
    monkeypatch.setattr(start, "library", lambda: have["kind"])
    monkeypatch.setattr(start, "offered", lambda: have["plugins"])
    monkeypatch.setattr(start, "find", lambda: have["mpirun"])
    monkeypatch.setattr(start, "which", lambda name: have["srun"])
    return have


def works(*good: str):
    """An attempt that succeeds for lines that begin with one of these; notes what was tried."""
    tried: list[str] = []

    def attempt(way):
        tried.append(" ".join(way))
        return any(tried[-1].startswith(g) for g in good), "its reason"

    return attempt, tried


@pytest.mark.parametrize(
    ("kind", "plugins", "good", "expected"),
    [
        ("MPICH", ("none", "pmi2", "pmix"), "srun --mpi=pmi2", "srun --mpi=pmi2 --ntasks=8 --kill-on-bad-exit=1"),
        ("Open MPI", ("none", "pmi2", "pmix"), "srun --mpi=pmix", "srun --mpi=pmix --ntasks=8 --kill-on-bad-exit=1"),
        ("Open MPI", ("none", "pmi2"), "/opt", "/opt/bin/mpirun -n 8"),
        ("MPICH", ("cray_shasta", "none"), "srun --mpi=cray", "srun --mpi=cray_shasta --ntasks=8 --kill-on-bad-exit=1"),
        ("Cray MPI", (), "srun --ntasks", "srun --ntasks=8 --kill-on-bad-exit=1"),
        ("MPICH", ("none",), "/opt", "/opt/bin/mpirun -n 8"),
    ],
)
def test_the_first_way_that_works(machine, kind, plugins, good, expected):
    machine.update(kind=kind, plugins=plugins)
    attempt, tried = works(good)
    assert " ".join(start.command(SITE, 8, JOB, attempt)) == expected
    assert all("=2" in t or "-n 2" in t for t in tried)  # with two processes, whatever the job has


def test_a_way_that_slurm_offers_but_cannot_do(machine):
    machine.update(kind="Open MPI")
    attempt, tried = works("/opt")
    assert start.command(SITE, 4, JOB, attempt) == ["/opt/bin/mpirun", "-n", "4"]
    assert tried[0].startswith("srun --mpi=pmix")


def test_none_works(machine):
    attempt, _ = works()
    with pytest.raises(PlanError) as refused:
        start.command(SITE, 4, JOB, attempt)
    assert "one world of 4 processes of MPICH" in str(refused.value)
    assert "srun --mpi=pmi2: its reason; /opt/bin/mpirun: its reason" in str(refused.value)


def test_outside_a_job_srun_would_ask_for_another(machine):
    attempt, tried = works("/opt")
    assert start.command(SITE, 4, {}, attempt) == ["/opt/bin/mpirun", "-n", "4"]
    assert not any(t.startswith("srun") for t in tried)


def test_one_rank_needs_no_launcher_and_a_site_may_name_one(machine):
    attempt, tried = works()
    assert start.command(SITE, 1, JOB, attempt) == []
    named = Site(about="named", launch=("srun", "--cpu-bind=cores"))
    assert start.command(named, 2, JOB, attempt) == ["srun", "--cpu-bind=cores", "--ntasks=2", "--kill-on-bad-exit=1"]
    assert not tried


@pytest.mark.skipif(start.find() is None, reason="no mpirun")
def test_this_machine():
    """The library is asked without starting MPI, and its launcher makes one world."""
    env = {k: v for k, v in os.environ.items() if k != "SLURM_JOB_ID"}
    way = start.command(SITE, 2, env)
    assert way[1:] == ["-n", "2"] and os.path.dirname(way[0]) in (os.path.dirname(sys.executable), *os.environ["PATH"].split(":"))


@pytest.mark.parametrize(
    ("env", "ranks", "expected"),
    [
        ({}, 2, None),
        ({"SLURM_CPUS_PER_TASK": "3"}, 2, None),  # left over from a login shell's job
        ({**JOB, "SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "8"}, 2, 3),
        ({**JOB, "SLURM_CPUS_ON_NODE": "8"}, 2, 4),
        ({**JOB, "SLURM_CPUS_ON_NODE": "2"}, 4, 1),
        (JOB, 2, None),
    ],
)
def test_cores_that_slurm_gave(env, ranks, expected):
    assert settings.allotted(env, ranks) == expected


def test_threads_never_outnumber_what_the_job_was_given():
    assert settings.threads_for(0, 64, 4) == 16
    assert settings.threads_for(0, 64, 4, 2) == 2  # Slurm binds nobody here: the rank sees cores of other jobs
    assert settings.threads_for(0, 8, 4, 16) == 2
    assert settings.threads_for(3, 64, 4, 2) == 3


def host(name: str, cores: list[int], threads: int = 1, gpu: int | None = None) -> dict:
    return {"name": name, "pid": 1, "cores": cores, "threads": threads, "gpu": gpu}


def test_places():
    bound = [host(n, cores, 2, gpu) for n in ("n1", "n2") for gpu, cores in enumerate(([0, 1], [2, 3]))]
    assert binding.lines(bound) == [
        "n1  ranks 0-1  cores 0-1 | 2-3  2 threads each  GPUs 0 1",
        "n2  ranks 2-3  cores 0-1 | 2-3  2 threads each  GPUs 0 1",
    ]
    assert binding.lines([host("n1", [0, 1, 2, 5], 1), host("n1", [0, 1, 2, 5], 2)]) == ["n1  ranks 0-1  cores 0-2,5 together  threads 1 2"]
    assert binding.lines([host("n1", [3])]) == ["n1  rank 0  cores 3  1 thread each"]
    cyclic = [host(f"n{r % 2}", [0]) for r in range(4)]
    assert [line.split("  ")[1] for line in binding.lines(cyclic)] == ["ranks 0,2", "ranks 1,3"]
    many = binding.lines([host(f"n{r}", [0]) for r in range(20)])
    assert len(many) == 9 and many[-1] == "… and 12 more nodes; the trace has them all"
