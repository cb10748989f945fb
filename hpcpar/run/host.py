"""What is recorded about where a run ran: hosts, versions, cores; strings and numbers that JSON holds."""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import hpcpar

PACKAGES = ("numpy", "mpi4py", "h5py", "numba", "msgspec", "cupy-cuda12x", "cupy-cuda13x")


def host(threads: int, gpu: int | None = None) -> dict[str, Any]:
    """This rank's host, its cores, BLAS threads and GPU's number there."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {"name": socket.gethostname(), "pid": os.getpid(), "cores": cores, "threads": threads, "gpu": gpu}


def versions() -> dict[str, str]:
    """Versions of what the run stands on."""
    out = {"hpcpar": hpcpar.__version__, "python": platform.python_version(), "platform": sys.platform}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return out
