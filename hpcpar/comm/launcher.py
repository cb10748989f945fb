"""Does the launcher match the MPI library? The wrong one starts N processes that each believe to be rank 0 of 1."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcpar.errors import PlanError

SAY = "from mpi4py import MPI; print(f'<world {MPI.COMM_WORLD.size}>', flush=True)"

# What a launcher tells its processes: (number of ranks, this rank, launcher).
SIGNS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    ("PMI_SIZE", "PMI_RANK", "MPICH's mpirun, or srun with pmi2"),
    ("PALS_SIZE", "PALS_RANKID", "PALS"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"),
)


def check_launcher(env: Mapping[str, str], size: int, library: str) -> None:
    """Raise PlanError if the environment tells of a launch of several ranks and MPI sees one.

    The error's `quiet` is true on all processes but the first, so that it is said once.
    """
    for many, rank, launcher in SIGNS:
        try:
            launched, mine = int(env[many]), int(env.get(rank, "0"))
        except (KeyError, ValueError):
            continue
        if launched > 1 and size == 1:
            error = PlanError(
                f"{launcher} started {launched} processes, but each sees a world of 1: the MPI library in use is {library}; "
                "use the mpirun of that library (`hpcpar doctor` names it)"
            )
            error.quiet = mine != 0
            raise error


def find() -> str | None:
    """The launcher beside this Python, else the one on PATH; None where there is none."""
    beside = str(Path(sys.executable).parent)
    for name in ("mpiexec", "mpirun"):
        found = shutil.which(name, path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
        if found:
            return found
    return None


def world_of(launch: Sequence[str], ranks: int, env: Mapping[str, str], timeout_s: float, program: str = SAY) -> tuple[bool, str]:
    """(whether this launch line makes one world of `ranks` processes, in words): start them and ask each how many there are."""
    try:
        child = subprocess.run(
            [*launch, sys.executable, "-c", program], env=dict(env), capture_output=True, text=True, timeout=timeout_s, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return False, f"{ranks} processes did not end within {timeout_s:g} s"
    except OSError as e:
        return False, f"cannot be started: {e.strerror}"
    sizes = [int(n) for n in re.findall(r"<world (\d+)>", child.stdout)]  # two processes may write on one line
    if sizes == [ranks] * ranks:
        return True, f"matches the library: {ranks} processes are one world"
    if sizes == [1] * ranks:
        return False, f"belongs to another MPI: {ranks} processes each see a world of 1"
    return (
        False,
        f"{ranks} processes could not be started (exit {child.returncode}): {_why(child.stderr) or _why(child.stdout) or 'no output'}",
    )


def _why(text: str) -> str:
    """The line that says why: the last one; the first of a text between lines of dashes, as Open MPI writes it."""
    lines = text.strip().splitlines()
    said = [line.strip() for line in lines if any(c.isalnum() for c in line)]
    framed = bool(lines) and not any(c.isalnum() for c in lines[0])
    return (said[0 if framed else -1] if said else "")[:160]
