"""The all-reduce by rounds on device arrays, over two and three ranks that share the GPU: direct where MPI takes them, and staged."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hpcpar.comm import device
from hpcpar.measure import launcher_facts

PROGRAM = """
import json, sys
import cupy
import numpy as np
from mpi4py import MPI
from hpcpar.collectives import ALGORITHMS
from hpcpar.comm import device
from hpcpar.comm.world import World

world = World()
device.select_device(world.node_rank)
stand_in = hasattr(cupy, "_state")  # its memory is host memory, whatever the MPI library says
verdict = world.share(device.gpu_aware("yes" if stand_in else "auto") if world.rank == 0 else None)
world.direct, world.reduces = sys.argv[1] == "direct" and verdict.direct, False
wrong = 0
for name in ("auto", *ALGORITHMS):
    started = []
    for n in (0, 1, 1000, 1 << 18):
        mine = np.random.default_rng([n, world.rank]).standard_normal(n)
        a = cupy.zeros(n)
        for _ in range(20):  # work is still pending when the sum is asked for
            a += cupy.asarray(mine)
        started.append((mine, a, world.allreduce_start(a, algorithm=name)))
    for mine, a, pending in started:
        pending.wait()
        b = np.zeros(mine.size)
        for _ in range(20):
            b += mine
        world.allreduce(b, algorithm=name) if name != "auto" else world.allreduce(b)
        got = (a + 0).get()
        wrong += int((got != b).sum()) if name != "auto" or world.size == 2 else int((abs(got - b) > 1e-12 * abs(b) + 1e-13).sum())
        wrong += len({x for x in world.comm.allgather(got.tobytes())}) - 1
wrong = world.comm.allreduce(wrong)
if world.rank == 0:
    print("result", json.dumps({"wrong": wrong, "direct": verdict.direct, "reason": verdict.reason}))
"""


@pytest.mark.skipif(launcher_facts.find() is None, reason="no mpiexec")
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("how", ["direct", "staged"])
def test_sums_have_the_bits_of_the_host(how: str, ranks: int) -> None:
    env = device.alone(os.environ) | launcher_facts.PERMIT
    command = [str(launcher_facts.find()), "-n", str(ranks), sys.executable, "-m", "mpi4py", "-c", PROGRAM, how]
    child = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert child.returncode == 0, child.stdout + child.stderr
    found = json.loads(child.stdout.partition("result ")[2])
    assert found["wrong"] == 0
    if how == "direct" and not found["direct"]:
        pytest.skip(f"MPI does not take device arrays: {found['reason']}")
