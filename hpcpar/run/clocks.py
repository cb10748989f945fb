"""When the clocks of the ranks are compared: at the start, at the end, and every run.clock_every_s where all stand between two steps.

    step 41 | step 42 |x| step 43 | ...      rank 0's word that it is time travels with the sum of the losses, so that all stop after the
                                             same step; where steps have no such sum, it is asked for at the drains

What is spent on it belongs to no step: its events bear the number 0.
"""

from __future__ import annotations

import time

from hpcpar.comm.clock import point
from hpcpar.comm.world import World
from hpcpar.run.recorder import Recorder


class Clocks:
    """Compares this rank's clock with rank 0's, and records what it finds. Without a trace nothing is compared."""

    def __init__(self, world: World, recorder: Recorder, every_s: float):
        self.world, self.recorder, self.every_s = world, recorder, every_s
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time, by the clock of rank 0, whose word counts."""
        alone = self.world.rank or self.world.size == 1 or not self.recorder.writer
        return not alone and time.monotonic() - self._last >= self.every_s

    def compare(self) -> None:
        """Compare and record; collective, between two steps."""
        if self.recorder.writer:
            step = self.recorder.step
            self.recorder.begin(0)
            start = time.perf_counter_ns()
            found = point(self.world)
            self.recorder.message("collective", start, time.perf_counter_ns(), "clock_point", "world")
            self.recorder.writer.clock(found.local_ns, -found.ahead_ns, found.bound_ns)
            self.recorder.begin(step)
        self._last = time.monotonic()

    def ask(self) -> bool:
        """Rank 0's word, for all; collective, at a drain."""
        if not self.recorder.writer or self.world.size == 1:
            return False
        step = self.recorder.step
        self.recorder.begin(0)
        asked = self.world.share(self.due())
        self.recorder.begin(step)
        return asked
