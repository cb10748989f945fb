"""Which mpirun is found, and whether it belongs to the MPI library: the wrong one starts N processes that each see a world of 1."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpcpar.comm.device import alone

RANKS = 2
LAUNCH_S = 60.0
SAY = "from mpi4py import MPI; print(f'<world {MPI.COMM_WORLD.size}>', flush=True)"
# Open MPI refuses to run as root, and more ranks than slots, unless told; the others do not read these.
PERMIT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def find() -> str | None:
    """The launcher beside this Python, else the one on PATH; None where there is none."""
    beside = str(Path(sys.executable).parent)
    for name in ("mpiexec", "mpirun"):
        found = shutil.which(name, path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
        if found:
            return found
    return None


def check(path: str, timeout_s: float = LAUNCH_S, program: str = SAY) -> tuple[bool, str]:
    """(whether it matches the library, in words): start 2 processes and ask each how many there are."""
    command = [path, "-n", str(RANKS), sys.executable, "-c", program]
    try:
        child = subprocess.run(command, env=alone(os.environ) | PERMIT, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False, f"{RANKS} processes did not end within {timeout_s:g} s"
    except OSError as e:
        return False, f"cannot be started: {e.strerror}"
    sizes = [int(n) for n in re.findall(r"<world (\d+)>", child.stdout)]  # two processes may write on one line
    if sizes == [RANKS] * RANKS:
        return True, f"matches the library: {RANKS} processes are one world"
    if sizes == [1] * RANKS:
        return False, f"belongs to another MPI: {RANKS} processes each see a world of 1"
    last = (child.stderr.strip().splitlines() or child.stdout.strip().splitlines() or ["no output"])[-1]
    return False, f"{RANKS} processes could not be started (exit {child.returncode}): {last[:160]}"


def facts() -> dict[str, Any]:
    """The launcher's path, whether it matches (None where it was not tried) and why."""
    path = find()
    if path is None:
        slurm = "; use srun" if shutil.which("srun") else '; pip install "hpcpar[mpi]", or load the site\'s MPI'
        return {"path": None, "matches": None, "reason": f"neither mpiexec nor mpirun is on PATH{slurm}"}
    matches, reason = check(path)
    return {"path": path, "matches": matches, "reason": reason}
