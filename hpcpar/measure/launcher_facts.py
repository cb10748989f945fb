"""Which mpirun is found, and whether it belongs to the MPI library: the wrong one starts N processes that each see a world of 1."""

from __future__ import annotations

import os
import shutil
from typing import Any

from hpcpar.comm.device import alone
from hpcpar.comm.launcher import SAY, find, world_of

RANKS = 2
LAUNCH_S = 60.0
# Open MPI refuses to run as root, and more ranks than slots, unless told; the others do not read these.
PERMIT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def check(path: str, timeout_s: float = LAUNCH_S, program: str = SAY) -> tuple[bool, str]:
    """(whether it matches the library, in words): start 2 processes and ask each how many there are."""
    return world_of([path, "-n", str(RANKS)], RANKS, alone(os.environ) | PERMIT, timeout_s, program)


def facts() -> dict[str, Any]:
    """The launcher's path, whether it matches (None where it was not tried) and why."""
    path = find()
    if path is None:
        slurm = "; use srun" if shutil.which("srun") else '; pip install "hpcpar[mpi]", or load the site\'s MPI'
        return {"path": None, "matches": None, "reason": f"neither mpiexec nor mpirun is on PATH{slurm}"}
    matches, reason = check(path)
    return {"path": path, "matches": matches, "reason": reason}
