"""The layer of experts cut over two and three ranks that share the GPU, by every way: as on the CPU, and the same bits by each way."""

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
from dataclasses import replace
from itertools import product
import cupy
import numpy as np
from hpcpar.comm import device
from hpcpar.comm.world import World
from hpcpar.config import Ways, build
from hpcpar.forms.expert import held
from hpcpar.nn import moe
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.parameters import FlatMap
from hpcpar.parallel.expert import Exchange

world = World()
device.select_device(world.node_rank)
stand_in = hasattr(cupy, "_state")  # its memory is host memory, whatever the MPI library says
verdict = world.share(device.gpu_aware("yes" if stand_in else "auto") if world.rank == 0 else None)
world.direct = sys.argv[1] == "direct" and verdict.direct
world.nodes = [0, 1, 0][: world.size]
E, model = 7, build({"model": {"layers": 1, "width": 6, "heads": 2, "context": 5, "mlp_width": 4, "moe": {
    "experts": 7, "gate": "topk", "k": 2, "dropout": 0.2, "shared": 1, "capacity": {"policy": "floor", "factor": 0.9}}}}).model
wrong = []

def results(xp, ways):
    at_map, draw = FlatMap([layers(model)[1]]), np.random.default_rng(4)
    w = at_map.weights(xp.asarray(draw.normal(0, 0.5, at_map.size)))[0]
    mine = held(E, world.size, world.rank)
    w = {k: v[mine.start : mine.stop] if ".experts." in k else v for k, v in w.items()}
    h, dy = (xp.asarray(a[world.rank]) for a in draw.normal(size=(2, 3, 10, 6)))
    frame = replace(Frame.of(model, 1, xp, "float64"), dispatch=Exchange(world, ways))
    at, found = Microbatch(frame, 2, 5, 1, 2 * world.rank, batch=2 * world.size), {}
    for _ in range(20):  # work is still pending when rows are to leave
        h += xp.asarray(draw.normal(size=h.shape)) * 1e-3
    def sink(part, backward_weight, held):
        dw, db = (xp.zeros_like(w[k]) if k in w else None for k in (f"{part}.weight", f"{part}.bias"))
        backward_weight(held, dw, db, False)
        found.update({k: g for k, g in ((f"{part}.weight", dw), (f"{part}.bias", db)) if g is not None})
    y, saved = moe.forward(h, w, at, "blocks.0")
    found |= {"y": y, "dh": moe.backward(dy, saved, w, sink, at, "blocks.0")}
    for name, a in found.items():
        if not isinstance(a, xp.ndarray):
            wrong.append(f"{name} left the GPU")
    return {name: a if xp is np else a.get() for name, a in found.items()}

want, first = results(np, Ways()), results(cupy, Ways())
for counts, exchange, overlap in product(("exchanged", "fixed"), ("mpi", "pairwise", "two-level"), (1, 2)):
    got = results(cupy, Ways(counts=counts, exchange=exchange, overlap=overlap))
    for name, a in want.items():
        if np.abs(got[name] - a).max() > 1e-12 * max(1, np.abs(a).max()):
            wrong.append(f"{name} by {counts} {exchange} {overlap}: not the CPU's")
        if stand_in and not np.array_equal(got[name], first[name]):  # on a device the products of fewer experts may be made otherwise
            wrong.append(f"{name} by {counts} {exchange} {overlap}: other bits")
found = world.comm.allgather(wrong)
if world.rank == 0:
    print("result", json.dumps({"wrong": found, "direct": verdict.direct, "reason": verdict.reason}))
"""


@pytest.mark.skipif(launcher_facts.find() is None, reason="no mpiexec")
@pytest.mark.parametrize(("ranks", "how"), [(2, "direct"), (3, "staged")])
def test_every_way_as_on_the_cpu(ranks: int, how: str) -> None:
    env = device.alone(os.environ) | launcher_facts.PERMIT
    command = [str(launcher_facts.find()), "-n", str(ranks), sys.executable, "-m", "mpi4py", "-c", PROGRAM, how]
    child = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert child.returncode == 0, child.stdout + child.stderr
    found = json.loads(child.stdout.partition("result ")[2])
    assert found["wrong"] == [[]] * ranks
    if how == "direct" and not found["direct"]:
        pytest.skip(f"MPI does not take device arrays: {found['reason']}")
