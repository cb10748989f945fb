"""A run in which something goes wrong on one rank: python faulty.py FAULT RANK STEP hpcpar-arguments..."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

from hpcpar import checkpoint
from hpcpar.cli.main import main
from hpcpar.nn.gradients import Gradients
from hpcpar.run.executor import Executor
from hpcpar.run.part import Part

fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here = MPI.COMM_WORLD.Get_rank() == rank
forward, backward, done, advance = Executor._forward, Executor._backward, Gradients._done, Part.advance
now = [0]
SIGNALS = {"usr1": signal.SIGUSR1, "term": signal.SIGTERM}
write_part = checkpoint.write_part


def failing(self, action, work):
    if here and self.recorder.step == step:
        if fault == "raise":
            raise ValueError("planted")
        if fault == "kill":
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in SIGNALS:
            os.kill(os.getpid(), SIGNALS[fault])
        if fault == "hang":
            time.sleep(10**6)
        if fault == "limit":  # on the size of a file
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        if fault == "fill":  # the disk
            out = Path(sys.argv[sys.argv.index("--out") + 1]).parent / "ballast"
            with out.open("ab", buffering=0) as file:
                for size in (1 << 20, 1 << 12, 1):
                    try:
                        while True:
                            file.write(bytes(size))
                    except OSError:
                        continue
    return forward(self, action, work)


def signalled(*arguments):
    """Signals come while a checkpoint is written too."""
    if here and fault in SIGNALS:
        for number in SIGNALS.values():
            os.kill(os.getpid(), number)
    return write_part(*arguments)


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
checkpoint.write_part = signalled
Part.advance = drifting
sys.exit(main(sys.argv[4:]))
