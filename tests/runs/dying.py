"""A run that loses ranks: python dying.py RANK@STEP@PLACE,... hpcpar-arguments...; ranks are those of the launch, places are below."""

from __future__ import annotations

import os
import signal
import sys
import time

from mpi4py import MPI

from hpcpar import checkpoint
from hpcpar.cli.main import main
from hpcpar.comm import survival
from hpcpar.run import saving, train
from hpcpar.run.executor import Executor

rank, now = MPI.COMM_WORLD.Get_rank(), [0]
mine = {(int(step), place) for who, step, place in (one.split("@") for one in sys.argv[1].split(",") if one) if int(who) == rank}


def dies(place, step=None):
    """Whether this rank is lost here; it is then not there any more."""
    if (now[0] if step is None else step, place) in mine:
        os.kill(os.getpid(), signal.SIGKILL)


def at(owner, name, place, after=False):
    """Lose the rank before, or after, a function of the program."""
    whole = getattr(owner, name)

    def planted(*arguments, **named):
        if not after:
            dies(place)
        out = whole(*arguments, **named)
        if after:
            dies(place)
        return out

    setattr(owner, name, planted)


def forward(self, action, work):
    now[0] = self.recorder.step
    dies("forward")
    if (now[0], "raise") in mine:
        raise ValueError("planted")
    return first(self, action, work)


def late(world, well):
    """This rank comes late, so that the others wait for it in a world with a lost rank."""
    if not well and (now[0], "late") in mine:
        time.sleep(1)
    return agree(world, well)


agree, survival.all_ended = survival.all_ended, late
first = Executor._forward
Executor._handlers = {k: forward if h is first else h for k, h in Executor._handlers.items()}
at(checkpoint, "write_part", "writing")  # as one of several who write
at(checkpoint, "commit", "committed", after=True)  # by the first rank, before the others know
at(saving, "restore", "restoring")
at(train, "_finish", "end")
at(train, "_finish", "ended", after=True)
at(survival, "World", "shrinking")  # the others are about to make the world of those that are left
sys.exit(main(sys.argv[2:]))
