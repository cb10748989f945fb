"""What this machine, its Python and its MPI can do: everything that a report of a fault needs, found without harm.

Nothing here raises: what cannot be found is named with its reason. MPI and the probes run in child processes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from typing import Any

import hpcpar
from hpcpar.comm.device import alone, device_facts
from hpcpar.measure import launcher_facts

MPI_S = 150.0  # starting MPI and a probe of device memory

Facts = dict[str, Any]


def facts() -> Facts:
    """Sections of facts, as JSON holds them; sizes in bytes."""
    mpi = mpi_facts()
    return {
        "hpcpar": {"version": hpcpar.__version__, "python": platform.python_version(), "executable": sys.executable, "system": _system()},
        "cpu": cpu_facts(),
        "numpy": numpy_facts(),
        "mpi": mpi,
        "launcher": launcher_facts.facts()
        if "library" in mpi
        else {"path": launcher_facts.find(), "matches": None, "reason": "not tried without MPI"},
        "gpu": device_facts(),
        "hdf5": hdf5_facts(),
        "slurm": slurm_facts(),
    }


def cpu_facts() -> Facts:
    """Cores of the machine, those that this process may use, and the share of time that its cgroup allows (None: all)."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return {"cores": os.cpu_count(), "usable": cores, "quota": _quota()}


def numpy_facts() -> Facts:
    """NumPy and the BLAS that it has loaded, with the threads that it would use."""
    import numpy as np
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))  # loads the library
    blas = [i for i in threadpool_info() if i.get("user_api") == "blas"]
    keys = {"name": "internal_api", "version": "version", "kernels": "architecture", "threads": "num_threads"}
    return {"version": np.__version__, "blas": [{k: i.get(of) for k, of in keys.items()} for i in blas]}


def mpi_facts(timeout_s: float = MPI_S) -> Facts:
    """The facts of mpi_facts.py from a child process, or {"reason": ...}."""
    command = [sys.executable, "-m", "hpcpar.measure.mpi_facts"]
    try:
        child = subprocess.run(command, env=alone(os.environ), capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"reason": f"MPI did not start within {timeout_s:g} s"}
    for line in child.stdout.splitlines():
        if line.startswith("facts "):
            return json.loads(line.removeprefix("facts "))
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return {"reason": f"starting MPI ended the process (exit {child.returncode}): {last[:160]}"}


def hdf5_facts() -> Facts:
    """h5py, HDF5, whether it writes one file from many ranks, and its file locking, which shared file systems may refuse."""
    try:
        import h5py
    except ImportError as e:
        return {"reason": str(e)}
    locking = os.environ.get("HDF5_USE_FILE_LOCKING", "default")
    return {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version, "parallel": h5py.get_config().mpi, "locking": locking}


def slurm_facts() -> Facts:
    """Slurm's version, and the job that this is part of; {"version": None} where it is not installed."""
    srun = shutil.which("srun")
    if srun is None:
        return {"version": None, "job": None}
    try:
        child = subprocess.run([srun, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {"version": "installed, but srun does not answer", "job": None}
    said = child.stdout.strip()
    if not said:  # without a configuration even the version is not told
        why = (child.stderr.strip().splitlines() or ["no message"])[-1]
        said = f"installed, but srun fails: {why.removeprefix('srun: ')}"
    return {"version": said.removeprefix("slurm "), "job": os.environ.get("SLURM_JOB_ID")}


def _system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _quota() -> float | None:
    """Cores' worth of time that the cgroup allows (cgroup v2)."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as f:
            allowed, period = f.read().split()
    except (OSError, ValueError):
        return None
    return None if allowed == "max" else int(allowed) / int(period)


def lines(found: Facts) -> list[tuple[str, str]]:
    """The facts as (label, text) rows; a row with an empty text is a heading."""
    h, cpu, mpi, launcher, gpu = (found[k] for k in ("hpcpar", "cpu", "mpi", "launcher", "gpu"))
    usable = cpu["usable"]
    out = [
        ("hpcpar", h["version"]),
        ("python", f"{h['python']}  {h['executable']}"),
        ("system", h["system"]),
        ("cores", f"{len(usable)} of {cpu['cores']} usable: {ranges(usable)}" + (f", {cpu['quota']:g} by cgroup" if cpu["quota"] else "")),
        ("numpy", found["numpy"]["version"]),
        *(("BLAS", f"{b['name']} {b['version']}, {b['kernels']} kernels, {b['threads']} threads") for b in found["numpy"]["blas"]),
    ]
    if "library" in mpi:
        out += [
            ("mpi4py", mpi["mpi4py"]),
            ("MPI", f"{mpi['library']}, standard {mpi['standard']}, threads {mpi['threads']}"),
            ("", str(mpi["path"])),
            ("GPU-aware MPI", ("yes: " if mpi["gpu_aware"] else "no: ") + mpi["gpu_reason"]),
        ]
    else:
        out.append(("MPI", f'none: {mpi["reason"]}; pip install "hpcpar[mpi]", or load the site\'s MPI'))
    out.append(("launcher", f"{launcher['path'] or 'none'}: {launcher['reason']}"))
    out.append(
        (
            "cupy",
            f"{gpu['cupy'] or 'none'}" + (f": {gpu['reason']}" if gpu["reason"] else f", CUDA {gpu['runtime']}, driver {gpu['driver']}"),
        )
    )
    out += [(f"GPU {g['index']}", f"{g['name']}, {g['memory_bytes'] / 2**30:.1f} GiB, capability {g['capability']}") for g in gpu["gpus"]]
    out.append(("HDF5", _hdf5(found["hdf5"])))
    slurm = found["slurm"]
    out.append(
        ("Slurm", f"{slurm['version']}" + (f", job {slurm['job']}" if slurm["job"] else "") if slurm["version"] else "not installed")
    )
    return out


def _hdf5(found: Facts) -> str:
    if "reason" in found:
        return f"none: {found['reason']}"
    return f"{found['hdf5']}, h5py {found['h5py']}, {'parallel' if found['parallel'] else 'one file a rank'}, locking {found['locking']}"


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as ranges: [0, 1, 2, 5] -> "0-2, 5"."""
    out: list[list[int]] = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in out)
