"""Between a GPU's arrays and MPI: messages that are right, direct where MPI takes device memory and staged everywhere; and the rates."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hpcpar.comm import device
from hpcpar.measure import launcher_facts

RING = """
import sys, json, cupy
from mpi4py import MPI
from hpcpar.comm import device
comm = MPI.COMM_WORLD
verdict = device.gpu_aware("auto") if comm.rank == 0 else None
verdict = comm.bcast(verdict)
device.select_device(comm.rank)
direct = verdict.direct and sys.argv[1] == "direct"
wrong = 0
for n in (1, 1000, 1 << 22):
    for trial in range(5):  # work is still pending when the message is asked for
        a = cupy.zeros(n)
        for _ in range(20):
            a += comm.rank + 1
        b = cupy.empty(n)
        buffer, finish = device.receive_buffer(b, direct)
        requests = [comm.Irecv(buffer, 1 - comm.rank), comm.Isend(device.send_buffer(a, direct), 1 - comm.rank)]
        MPI.Request.Waitall(requests)
        finish()
        wrong += int((b != 20 * (2 - comm.rank)).sum())
        both, finish = device.both_buffer(b, direct and verdict.reduces)
        comm.Iallreduce(MPI.IN_PLACE, both, MPI.SUM).Wait()
        finish()
        wrong += int((b != 60).sum())
wrong = comm.allreduce(wrong)
if comm.rank == 0:
    print("result", json.dumps({"wrong": wrong, "direct": verdict.direct, "reason": verdict.reason}))
"""


@pytest.mark.skipif(launcher_facts.find() is None, reason="no mpiexec")
@pytest.mark.parametrize("how", ["direct", "staged"])
def test_messages_are_right(how: str) -> None:
    env = device.alone(os.environ) | launcher_facts.PERMIT
    command = [str(launcher_facts.find()), "-n", "2", sys.executable, "-m", "mpi4py", "-c", RING, how]
    child = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert child.returncode == 0, child.stdout + child.stderr
    found = json.loads(child.stdout.partition("result ")[2])
    assert found["wrong"] == 0
    if how == "direct" and not found["direct"]:
        pytest.skip(f"MPI does not take device arrays: {found['reason']}")


def test_the_device_is_described() -> None:
    facts = device.device_facts()
    assert facts["gpus"] and all(g["memory_bytes"] > 1 << 30 for g in facts["gpus"])


def test_used_memory_is_counted() -> None:
    import cupy

    before = cupy.get_default_memory_pool().used_bytes()
    a = cupy.ones(1 << 20)
    assert cupy.get_default_memory_pool().used_bytes() - before >= a.nbytes
