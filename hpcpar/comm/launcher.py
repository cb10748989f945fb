"""Does the launcher match the MPI library? The wrong one starts N processes that each believe to be rank 0 of 1."""

from __future__ import annotations

from collections.abc import Mapping

from hpcpar.errors import PlanError

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
