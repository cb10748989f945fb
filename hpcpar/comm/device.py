"""Everything between a device array and MPI: whether MPI may read device memory, and the buffer that it is given.

             direct                                  staged
    send     synchronise -> the array itself         synchronise -> copy in pinned host memory
    receive  synchronise -> the array itself         pinned host memory -> (message) -> copy to the device

mpi4py never synchronises: the current stream is synchronised before EVERY MPI call that touches a device array, receive buffers
included, because work that was given to the stream earlier may still read or write them. NumPy arrays pass through untouched.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.ops.array import Array, array_module

PROBE_S = 60.0  # a probe that hangs is a no
GPU_SUPPORT_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA of mpi.h

# A process of one rank sends a device array to itself. Where MPI cannot read device memory this ends in a segmentation fault.
PROBE = """
import cupy
from mpi4py import MPI
a, b = cupy.arange(65536, dtype=cupy.float64), cupy.zeros(65536)
cupy.cuda.get_current_stream().synchronize()
MPI.COMM_SELF.Sendrecv(a, 0, 0, b, 0, 0)
raise SystemExit(0 if bool((a == b).all()) else 3)
"""

# What launchers tell their processes; a process that starts its own MPI must not see it. MPICH_* settings stay.
LAUNCHER = (
    "PMI_", "PMIX_", "PMI2_", "PALS_", "SLURM_", "HYDI_", "HYDRA_", "MPIR_", "MPI_LOCAL", "PRTE_", "OMPI_COMM_", "OMPI_UNIVERSE_",
    "OMPI_APP_", "OMPI_FIRST_", "OMPI_FILE_", "OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_pmix", "OMPI_MCA_prte",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Whether MPI reads and writes device memory (`direct`), and why; `reduces`: whether also its non-blocking reductions do."""

    direct: bool
    reason: str
    reduces: bool = False


def gpu_aware(setting: str = "auto") -> Verdict:
    """Whether MPI may be given device arrays: run.gpu_aware, then the library's word, then a probe in a child process.

    A library's yes can be wrong, and then every transfer is a segmentation fault: only the probe makes it a yes. It takes a second or two;
    call it on one rank a node and share the verdict. Raises PlanError for another setting than "auto", "yes" and "no".
    """
    if setting == "no":
        return Verdict(False, "run.gpu_aware = no: through pinned host memory")
    if setting == "yes":
        return Verdict(True, "run.gpu_aware = yes", _reduces())
    if setting != "auto":
        raise PlanError(f"run.gpu_aware = {setting!r}; use auto, yes or no")
    said = query(library())
    if said is False:
        return Verdict(False, "the MPI library says that it does not support CUDA")
    word = "the MPI library says that it supports CUDA" if said else "the MPI library does not say whether it supports CUDA"
    worked, outcome = probe()
    return Verdict(worked, f"{word}, and {outcome}", worked and _reduces())


def _reduces() -> bool:
    """Open MPI's non-blocking reductions crash on device memory (its issue 9845)."""
    from mpi4py import MPI

    return MPI.get_vendor()[0] != "Open MPI"


def library(maps: str | None = None) -> str | None:
    """The path of the MPI library in this process, from /proc/self/maps; None where none is loaded or there is no such file."""
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text()
        except OSError:
            return None
    paths = dict.fromkeys(line.split(None, 5)[-1] for line in maps.splitlines() if "/" in line)
    return next((p for p in paths if Path(p).name.startswith(("libmpi.so", "libmpi_cray", "libmpi_gnu", "libmpi_intel", "libmpich"))), None)


def query(path: str | None) -> bool | None:
    """What the MPI library says of CUDA: MPIX_Query_cuda_support or MPIX_GPU_query_support; None where it has neither."""
    if path is None:
        return None
    mpi = ctypes.CDLL(path)  # ctypes.CDLL(None) does not see it: mpi4py loads it privately
    ask = getattr(mpi, "MPIX_GPU_query_support", None)
    if ask is not None:
        answer = ctypes.c_int(0)
        if ask(ctypes.c_int(GPU_SUPPORT_CUDA), ctypes.byref(answer)) == 0:
            return bool(answer.value)
    simple = getattr(mpi, "MPIX_Query_cuda_support", None)
    return None if simple is None else bool(simple())


def probe(program: str = PROBE, timeout_s: float = PROBE_S) -> tuple[bool, str]:
    """(whether it worked, in words) of sending a device array in a process of its own."""
    try:
        child = subprocess.run([sys.executable, "-c", program], env=alone(os.environ), capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False, f"a probe hung for {timeout_s:g} s"
    if child.returncode == 0:
        return True, "a probe sent a device array"
    if child.returncode < 0:
        return False, f"a probe was killed by signal {-child.returncode}"
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return False, f"a probe failed: {last[:200]}"


def alone(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without the launcher's variables, in which a child is the only rank of an MPI of its own."""
    return {k: v for k, v in env.items() if not k.startswith(LAUNCHER)}


def on_device(array: Array) -> bool:
    """Whether an array lives on a GPU."""
    return array_module(array) is not np


def synchronize(array: Array) -> None:
    """Wait for the current stream if the array is a device array."""
    if on_device(array):
        array_module(array).cuda.get_current_stream().synchronize()


def send_buffer(array: Array, direct: bool) -> Any:
    """What MPI reads: the array itself, or a copy of a device array in pinned host memory. It must live until the call is complete.

    Raises ValueError for an array that is not contiguous.
    """
    _contiguous(array)
    if not on_device(array):
        return array
    if direct:
        synchronize(array)
        return array
    host = _pinned(array)
    array.get(out=host)  # in stream order, and waits
    return host


def receive_buffer(array: Array, direct: bool) -> tuple[Any, Callable[[], None]]:
    """What MPI writes, and what to call once it has: `finish` brings a staged message to the device.

    Raises ValueError for an array that is not contiguous.
    """
    _contiguous(array)
    if not on_device(array):
        return array, _nothing
    if direct:
        synchronize(array)
        return array, _nothing
    host = _pinned(array)

    def finish() -> None:
        array.set(host)
        synchronize(array)  # the pinned memory goes back to its pool and may be written again at once

    return host, finish


def both_buffer(array: Array, direct: bool) -> tuple[Any, Callable[[], None]]:
    """What MPI reads and writes in place, and what to call once it has. Raises ValueError for an array that is not contiguous."""
    buffer = send_buffer(array, direct)
    if buffer is array:
        return array, _nothing

    def finish() -> None:
        array.set(buffer)
        synchronize(array)

    return buffer, finish


def select_device(local_rank: int) -> int:
    """Make one of the node's visible GPUs this process's, round robin by the rank on the node; returns its index.

    All GPUs of a node stay visible: a GPU hidden by a cgroup cannot be reached by its peers. Raises PlanError where there is none.
    """
    try:
        import cupy
    except ImportError as e:
        raise PlanError(f'run.device = "cuda" needs cupy ({e}); pip install "hpcpar[cuda12]" or "hpcpar[cuda13]"') from None
    if not cupy.cuda.is_available():
        raise PlanError(
            'run.device = "cuda", but this node shows 0 GPUs; check CUDA_VISIBLE_DEVICES and the driver, or use run.device = "cpu"'
        )
    index = local_rank % cupy.cuda.runtime.getDeviceCount()
    cupy.cuda.Device(index).use()
    return index


def device_facts() -> dict[str, Any]:
    """cupy, CUDA and the visible GPUs; the list is empty where there is none. Memory in bytes."""
    try:
        import cupy
    except ImportError as e:
        return {"cupy": None, "reason": str(e), "gpus": []}
    facts: dict[str, Any] = {"cupy": cupy.__version__, "reason": None, "gpus": []}
    if not cupy.cuda.is_available():
        return facts | {"reason": "no GPU or no driver"}
    runtime = cupy.cuda.runtime
    facts |= {"runtime": _version(runtime.runtimeGetVersion()), "driver": _version(runtime.driverGetVersion())}
    for index in range(runtime.getDeviceCount()):
        p = runtime.getDeviceProperties(index)
        facts["gpus"].append(
            {"index": index, "name": p["name"].decode(), "memory_bytes": p["totalGlobalMem"], "capability": f"{p['major']}.{p['minor']}"}
        )
    return facts


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


class Pinned:
    """Arrays in page-locked host memory, which a device copies from and to while it computes; it stands where an array module stands."""

    @staticmethod
    def empty(shape: Any, dtype: Any) -> np.ndarray:
        """An array that nobody has written."""
        import cupyx

        return cupyx.empty_pinned(shape, dtype)

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> np.ndarray:
        """An array of zeros."""
        import cupyx

        return cupyx.zeros_pinned(shape, dtype)


def _pinned(array: Array) -> np.ndarray:
    return Pinned.empty(array.shape, array.dtype)


def _contiguous(array: Array) -> None:
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of shape {array.shape} and strides {array.strides} is not contiguous, and MPI reads contiguous memory")


def _nothing() -> None:
    """There is nothing to bring anywhere."""
