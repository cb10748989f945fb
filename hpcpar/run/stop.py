"""SIGUSR1 (a time limit is near) or SIGTERM (preemption) on any rank: all ranks stop after the same step.

    rank 2   SIGUSR1 --> wanted             the handler notes it, no more; so does a second signal
    all      step 57: the sum of losses     carries the number of ranks that want to stop: no message more
    all      stopping                       checkpoint of step 57, status.json, exit code 85

Where steps have no sum of losses of their own the word travels with what there is: at the average of local SGD, and at the next drain
(evaluation, checkpoint, end) of asynchronous pipelines and parameter servers, since a drain that was not declared would change the weights.
"""

from __future__ import annotations

import signal
from types import FrameType

from hpcpar.errors import REQUEUE, Ended
from hpcpar.run.trainer import Trainer

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class Signals:
    """Notes the signals that ask this rank to stop, from now on; for the main thread."""

    def __init__(self) -> None:
        self._came: str | None = None
        for s in SIGNALS:
            signal.signal(s, self._note)

    def which(self) -> str | None:
        """The name of the first one that came; None as long as none has."""
        return self._came

    def ignore(self) -> None:
        """Nothing is left that a signal could stop: the process is about to end, with a code of its own."""
        for s in SIGNALS:
            signal.signal(s, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = self._came or signal.Signals(number).name


def early(trainer: Trainer, odd: int, came: str | None) -> Ended:
    """Why a run that all ranks stopped and saved after `trainer.steps` steps ends there, on every rank; collective.

    `odd` is the step whose gradient norm is not finite, else 0; `came` the signal of this rank.
    """
    world, saved = trainer.world, f"saved after step {trainer.steps}; go on with --resume"
    if odd:
        return Ended(f'step {odd}: the gradient norm is not finite, and train.nonfinite = "stop"; its update was skipped, {saved}')
    ranks = world.gather(came)
    text = ", ".join(f"{name} on rank {r}" for r, name in enumerate(ranks) if name) if ranks is not None else None
    return Ended(f"stopped by {world.share(text)}: {saved}", REQUEUE)
