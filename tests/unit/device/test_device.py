"""Between device arrays and MPI: the verdict, and buffers that are synchronised or staged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hpcpar.comm import device
from hpcpar.errors import PlanError
from hpcpar.measure import launcher_facts


def test_numpy_arrays_pass_through() -> None:
    a = np.arange(6.0)
    assert device.send_buffer(a, False) is a and device.send_buffer(a, True) is a
    for make in (device.receive_buffer, device.both_buffer):
        buffer, finish = make(a, False)
        assert buffer is a
        finish()
    device.synchronize(a)
    assert a.tolist() == [0, 1, 2, 3, 4, 5]


def test_strided_arrays_are_refused(cupy: ModuleType) -> None:
    for a in (np.ones((4, 4))[:, 1:], cupy.ones((4, 4))[:, 1:], cupy.ones((4, 3)).T):
        for make in (device.send_buffer, device.receive_buffer, device.both_buffer):
            for direct in (True, False):
                with pytest.raises(ValueError, match="not contiguous"):
                    make(a, direct)


def test_direct_buffers_are_synchronised(cupy: ModuleType) -> None:
    for make in (device.send_buffer, lambda a, d: device.receive_buffer(a, d)[0], lambda a, d: device.both_buffer(a, d)[0]):
        a = cupy.zeros(8)
        a += 1
        buffer = make(a, True)
        assert buffer is a
        _ = buffer.__cuda_array_interface__  # raises where work is pending
    assert cupy._state.counts.synchronisations == 3 and cupy._state.counts.pinned == 0


def test_staged_buffers_are_pinned_and_come_back(cupy: ModuleType) -> None:
    a = cupy.arange(6, dtype=cupy.float32).reshape(2, 3)
    sent = device.send_buffer(a, False)
    assert type(sent) is np.ndarray and np.array_equal(sent, a.get()) and sent.dtype == np.float32
    received, finish = device.receive_buffer(a, False)
    assert type(received) is np.ndarray and received.shape == a.shape
    received[...] = 7
    assert a[0, 0] == 0, "nothing arrives before finish"
    finish()
    assert (a == 7).all()
    _ = a.__cuda_array_interface__  # finish has waited for its copy: the pinned memory may be used again
    both, finish = device.both_buffer(a, False)
    assert (both == 7).all()
    both += 1
    finish()
    assert (a == 8).all()
    assert cupy._state.counts.pinned == 3 and cupy._state.counts.handed_over == 1


def test_explicit_settings_decide() -> None:
    assert not device.gpu_aware("no").direct and "run.gpu_aware = no" in device.gpu_aware("no").reason
    assert device.gpu_aware("yes").direct and "run.gpu_aware = yes" in device.gpu_aware("yes").reason
    with pytest.raises(PlanError, match="auto, yes or no"):
        device.gpu_aware("perhaps")


@pytest.mark.parametrize(
    ("said", "probed", "direct", "reason"),
    [
        (False, True, False, "does not support CUDA"),
        (True, True, True, "supports CUDA, and a probe sent"),
        (True, False, False, "killed by signal 11"),
        (None, True, True, "does not say"),
        (None, False, False, "does not say"),
    ],
)
def test_the_library_is_asked_then_probed(
    monkeypatch: pytest.MonkeyPatch, said: bool | None, probed: bool, direct: bool, reason: str
) -> None:
    monkeypatch.setattr(device, "query", lambda path: said)
    good, crash = "pass", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    real = device.probe
    monkeypatch.setattr(device, "probe", lambda: real(good if probed else crash))
    verdict = device.gpu_aware("auto")
    assert verdict.direct is direct and reason in verdict.reason


def test_probes_that_fail_say_why() -> None:
    assert device.probe("raise SystemExit(0)") == (True, "a probe sent a device array")
    assert device.probe("raise ValueError('why')") == (False, "a probe failed: ValueError: why")
    assert device.probe("import time; time.sleep(60)", timeout_s=0.5) == (False, "a probe hung for 0.5 s")


def test_a_probe_does_not_see_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", "1")
    program = "import os; raise SystemExit(('PMI_RANK' in os.environ) + 2 * ('MPICH_GPU_SUPPORT_ENABLED' not in os.environ))"
    assert device.probe(program)[0]


def test_the_library_is_found_in_the_maps(tmp_path: Path) -> None:
    parts = ["7f00-7f01 r-xp 0000 08:01 12  /opt/x/lib/libmpifort.so.12", "7f02-7f03 r-xp 0000 08:01 13  /opt/x y/lib/libmpi.so.40.30"]
    maps = "\n".join([*parts, "7f04-7f05 rw-p 0000 00:00 0 ", ""])
    assert device.library(maps) == "/opt/x y/lib/libmpi.so.40.30"
    assert device.library("7f00-7f01 r-xp 00000000 08:01 12  /lib/libc.so.6\n") is None
    assert device.query(None) is None


def test_devices_are_dealt_by_local_rank(cupy: ModuleType) -> None:
    assert [device.select_device(r) for r in range(5)] == [0, 1, 0, 1, 0]
    device.select_device(1)
    assert cupy.cuda.runtime.getDevice() == 1
    facts = device.device_facts()
    assert facts["cupy"] == "14.2.0" and [g["index"] for g in facts["gpus"]] == [0, 1] and facts["runtime"] == "13.0"


def test_no_cupy_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # import raises ImportError
    with pytest.raises(PlanError, match=r"needs cupy .*pip install"):
        device.select_device(0)
    assert device.device_facts()["cupy"] is None


def test_no_gpu_is_refused_in_one_line(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy.cuda, "is_available", lambda: False)
    with pytest.raises(PlanError, match="0 GPUs"):
        device.select_device(0)
    assert device.device_facts()["gpus"] == []


RING = """
import sys, cupy, numpy as np
from mpi4py import MPI
from hpcpar.comm import device
comm, direct = MPI.COMM_WORLD, sys.argv[1] == "direct"
rank, size = comm.rank, comm.size
assert size == 2
a, b = cupy.full((3, 5), rank + 1.0), cupy.zeros((3, 5))
a *= 10
received, finish = device.receive_buffer(b, direct)
requests = [comm.Irecv(received, 1 - rank), comm.Isend(device.send_buffer(a, direct), 1 - rank)]
MPI.Request.Waitall(requests)
finish()
assert (b == 10 * (2 - rank)).all(), b
b += a
summed, finish = device.both_buffer(b, direct)
comm.Iallreduce(MPI.IN_PLACE, summed, MPI.SUM).Wait()
finish()
assert (b == 60).all(), b
assert cupy._state.counts.pinned == (0 if direct else 3)
if direct:
    b += 1
    try:
        comm.Isend(b, rank)
    except RuntimeError as e:
        assert "pending work" in str(e)
    else:
        raise AssertionError("MPI was given device memory with pending work")
print("done", flush=True)
"""


@pytest.mark.skipif(launcher_facts.find() is None, reason="no mpiexec")
@pytest.mark.parametrize("how", ["direct", "staged"])
def test_two_ranks_exchange_device_arrays(standin: Path, how: str) -> None:
    env = device.alone(os.environ) | launcher_facts.PERMIT | {"PYTHONPATH": str(standin)}
    command = [str(launcher_facts.find()), "-n", "2", sys.executable, "-m", "mpi4py", "-c", RING, how]
    child = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert child.returncode == 0 and child.stdout.count("done") == 2, child.stdout + child.stderr
