"""A run in which something goes wrong on one rank: python faulty.py FAULT RANK STEP hpcpar-arguments..."""

from __future__ import annotations

import os
import signal
import sys
import time

from mpi4py import MPI

from hpcpar.cli.main import main
from hpcpar.nn.gradients import Gradients
from hpcpar.run.executor import Executor
from hpcpar.run.part import Part

fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here = MPI.COMM_WORLD.Get_rank() == rank
forward, backward, done, advance = Executor._forward, Executor._backward, Gradients._done, Part.advance
now = [0]


def failing(self, action, work):
    if here and self.recorder.step == step:
        if fault == "raise":
            raise ValueError("planted")
        if fault == "kill":
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
    return forward(self, action, work)


def noting(self, action, work):
    """The step whose gradients are made."""
    flow = getattr(work, "flow", None)
    now[0] = action.microbatch // flow.group + 1 if flow else self.recorder.step
    return backward(self, action, work)


def poisoned(self, layer, keys):
    """Before the part's bucket leaves."""
    if fault in ("nan", "inf") and here and now[0] == step:
        self.views[layer][keys[0]].reshape(-1)[1] = float(fault)
    return done(self, layer, keys)


def drifting(self, version, *arguments):
    """One weight of a replica goes its own way by one bit."""
    advance(self, version, *arguments)
    if fault == "drift" and here and version == step:
        flat = self.weights_by_name()["norm.gain"]
        flat.view("uint64" if flat.itemsize == 8 else "uint32")[-1] ^= 1


other = {forward: failing, backward: noting}
Executor._handlers = {k: other.get(h, h) for k, h in Executor._handlers.items()}
Gradients._done = poisoned
Part.advance = drifting
sys.exit(main(sys.argv[4:]))
