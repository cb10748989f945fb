"""Train; where the run is to survive, those that are left go on when ranks are lost, from the newest checkpoint.

    train on 3 ranks ... step 7, rank 1 is killed -> agree, shrink -> the plan on 2 ranks -> as `train --resume` -> train on 2 ranks ...

What follows is what a fresh start of these ranks with --resume would do, bit for bit: it is the same code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hpcpar.comm import survival
from hpcpar.comm.world import World
from hpcpar.config import Config
from hpcpar.errors import Ended, PlanError
from hpcpar.run import fewer
from hpcpar.run.recorder import Recorder
from hpcpar.run.status import Status
from hpcpar.run.train import agreed, train


@dataclass
class Survivors:
    """The ranks of a launch that are left: their world, and this rank's recorder and status."""

    world: World
    recorder: Recorder
    status: Status
    came: Callable[[], Any]  # the signal that this rank got, if any
    lost: list[int] = field(default_factory=list)  # by their numbers in the launch

    def train(self, config: Config, folder: Path, resume: bool, measure: Callable[[], dict[str, Any]], library: str) -> dict[str, Any]:
        """Train as described; returns the summary. Raises what `train` does.

        With `run.survive` it goes on after each loss, and at the end it leaves the process, with 0 or as refused.
        """
        if config.run.survive == "none":
            return self._train(config, folder, resume, measure, library)
        agreed(self.world, lambda: _check(config))
        try:
            self._until_the_end(config, folder, resume, measure, library)
        except PlanError as e:
            if not self.lost:
                raise
            self._leave(2, f"hpcpar: {e}\n")
        except Ended as e:
            self._leave(e.code, f"hpcpar: {e}\n")
        self._leave(0)

    def _leave(self, code: int, text: str = "") -> NoReturn:
        self.status.release()
        survival.leave(self.world, code, "" if self.world.rank else text)

    def _until_the_end(self, config: Config, folder: Path, resume: bool, measure: Callable[[], dict[str, Any]], library: str) -> None:
        while True:
            well, refusal = True, None  # type: tuple[bool, PlanError | Ended | None]
            try:
                self._train(config, folder, resume, measure, library)
            except (PlanError, Ended) as e:  # on every rank, or another one was lost before they all knew
                refusal = e
            except Exception as e:
                if not survival.lost(self.world, e):
                    raise
                well = False
            if survival.all_ended(self.world, well):
                if refusal:
                    raise refusal
                return
            resume = True
            self._go_on()
            config = agreed(self.world, lambda config=config: fewer.on(config, self.world.size))  # type: ignore[misc]

    def _train(self, config: Config, folder: Path, resume: bool, measure: Callable[[], dict[str, Any]], library: str) -> dict[str, Any]:
        mpi = {"library": library, "ranks": self.world.size, "lost": self.lost}
        return train(config, folder, resume, self.world, self.recorder, measure, mpi, self.status, self.came)

    def _go_on(self) -> None:
        before, step = len(self.lost), self.recorder.step
        self.recorder.close()
        self.status.release()
        self.world, self.lost = survival.shrink(self.world)
        self.recorder, self.status = Recorder(), Status(self.world.rank, self.world.size)
        if self.world.rank == 0:
            ranks = f"{len(self.lost) - before} rank(s) lost in step {step} (of the launch, lost so far: {', '.join(map(str, self.lost))})"
            sys.stderr.write(f"\nhpcpar: {ranks}; going on from the newest checkpoint on {self.world.size}\n")
            sys.stderr.flush()


def _check(config: Config) -> None:
    fewer.check(config)
    if reason := survival.unsupported():
        raise PlanError(f"{fewer.KEY}: {reason}, or leave it out")
