"""Which launcher starts the ranks inside a job: the ways that the MPI library and Slurm allow, tried in order with two processes.

    MPICH       srun --mpi=pmi2  ->  its mpirun, which finds the hosts of the allocation
    Open MPI    srun --mpi=pmix  ->  its mpirun
    a Cray      srun             (its MPI brings its own PMI)

A wrong way starts N processes that each believe to be rank 0 of 1, or none: so each is tried, and the first that makes one world counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from shutil import which

from hpcpar.comm.device import alone
from hpcpar.comm.launcher import find, world_of
from hpcpar.errors import PlanError
from hpcpar.launch.site import Site

KIND = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(*MPI.get_vendor()[0].split())"
KIND_S, SLURM_S, TRY_S = 120.0, 60.0, 120.0
PMI = {"Open MPI": ("pmix",), "MPICH": ("pmi2", "cray_shasta"), "Intel MPI": ("pmi2",), "MVAPICH": ("pmi2",)}

Try = Callable[[list[str]], tuple[bool, str]]


def library(timeout_s: float = KIND_S) -> str:
    """The MPI library of this Python, such as "MPICH"; raises PlanError where there is none. It is asked in a process of its own."""
    child = subprocess.run([sys.executable, "-c", KIND], env=alone(os.environ), capture_output=True, text=True, timeout=timeout_s)
    if child.returncode or not child.stdout.strip():
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise PlanError(f'no MPI library can be loaded on this node ({last[:120]}); load the site\'s MPI, or pip install "hpcpar[mpi]"')
    return child.stdout.strip()


def offered(timeout_s: float = SLURM_S) -> tuple[str, ...]:
    """The PMI plugins that this Slurm's srun has, by name; () where there is no srun."""
    srun = which("srun")
    if srun is None:
        return ()
    child = subprocess.run([srun, "--mpi=list"], capture_output=True, text=True, timeout=timeout_s)
    lines = (child.stdout + child.stderr).splitlines()
    return tuple(sorted({word for line in lines if not line.endswith("are...") for word in line.split()[-1:]}))


def ways(kind: str, plugins: tuple[str, ...], mpirun: str | None, inside: bool) -> list[list[str]]:
    """The ways to try, best first, for an MPI library, Slurm's plugins and the library's own launcher; `inside` a job of Slurm or not."""
    found = []
    if inside:
        wanted = PMI.get(kind, ("pmi2", "pmix"))
        found = [["srun", f"--mpi={name}"] for name in wanted if name in plugins]
        if not found and which("srun"):
            found = [["srun"]]
    return [*found, *([[mpirun]] if mpirun else [])]


def command(site: Site, ranks: int, env: Mapping[str, str], attempt: Try | None = None) -> list[str]:
    """The launcher with its options for `ranks` ranks; raises PlanError with what became of each way where none makes one world."""
    inside = "SLURM_JOB_ID" in env
    if site.launch:
        return [*site.launch, *options(site.launch[0], ranks, inside)]
    attempt = attempt or _tried
    if ranks == 1:
        return []
    kind = library()
    why = []
    for way in ways(kind, offered() if inside else (), find(), inside):
        works, reason = attempt([*way, *options(way[0], 2, inside)])
        if works:
            return [*way, *options(way[0], ranks, inside)]
        why.append(f"{' '.join(way)}: {reason}")
    tried = "; ".join(why) or "neither srun nor mpirun is on PATH"
    raise PlanError(
        f"no launcher makes one world of {ranks} processes of {kind} here ({tried}); load the MPI that this Slurm was built for, or name "
        "the launch line in a file for --site"
    )


def options(launcher: str, ranks: int, inside: bool) -> list[str]:
    """What a launcher is told besides its way: a dead rank ends the step, and more ranks than slots are no error outside a job."""
    if os.path.basename(launcher) == "srun":
        return [f"--ntasks={ranks}", "--kill-on-bad-exit=1"]
    return ["-n", str(ranks)]


def _tried(way: list[str]) -> tuple[bool, str]:
    return world_of(way, 2, dict(os.environ), TRY_S)
