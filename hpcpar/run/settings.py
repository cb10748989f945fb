"""What a process sets for itself before it computes: BLAS threads, and memory that stays with it.

Two ranks with two BLAS threads each on two cores ran twenty times slower than with one each, so a rank never takes more threads than
it has cores: those that the ranks of its node may use together, divided by the ranks.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from typing import Any

from hpcpar.errors import PlanError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def threads_for(wanted: int, cores: int, ranks: int, allotted: int | None = None) -> int:
    """BLAS threads of a rank: `wanted`, or for 0 its share of the `cores` that the `ranks` of its node may use together.

    A share is at most what the job was `allotted` for a rank: where Slurm does not bind processes, a rank sees cores of other jobs.

    Raises PlanError where one rank alone would take more than there are.
    """
    if wanted > cores:
        raise PlanError(
            f"run.threads = {wanted}, but the ranks of this node may use {cores} cores; use run.threads <= {cores}, or 0 for a share"
        )
    share = cores // ranks
    return wanted or max(1, share if allotted is None else min(share, allotted))


def threads_here(wanted: int, cores: int, ranks: int) -> int:
    """The same, with what this process's job was allotted."""
    return threads_for(wanted, cores, ranks, allotted(os.environ, ranks))


def allotted(env: Mapping[str, str], ranks: int) -> int | None:
    """Cores that Slurm gave each of the `ranks` ranks of this node; None outside a job."""
    if "SLURM_JOB_ID" not in env:
        return None
    if each := env.get("SLURM_CPUS_PER_TASK", ""):
        return int(each)
    together = env.get("SLURM_CPUS_ON_NODE", "")
    return max(1, int(together) // ranks) if together.isdigit() else None


def set_threads(threads: int) -> dict[str, Any]:
    """Set the threads of every BLAS in the process; returns what is recorded: threads and the libraries with their kernels."""
    import numpy as np
    from threadpoolctl import threadpool_info, threadpool_limits

    np.ones((2, 2)) @ np.ones((2, 2))  # loads the library
    threadpool_limits(threads)
    blas = [
        {k: i.get(k) for k in ("internal_api", "version", "architecture", "num_threads")}
        for i in threadpool_info()
        if i.get("user_api") == "blas"
    ]
    return {"threads": threads, "blas": blas}


def keep_memory() -> bool:
    """Tell glibc to keep freed memory: activations come and go every microbatch, and new pages cost more than the arithmetic on them."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
