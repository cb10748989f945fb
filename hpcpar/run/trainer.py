"""What a rank of any training run has: its parts, its executor, its place in the data, and how many steps are done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from hpcpar import checkpoint
from hpcpar.checkpoint.store import Tensor
from hpcpar.config import Config
from hpcpar.nn.describe import parameters
from hpcpar.run import owed
from hpcpar.run.build import Pipeline
from hpcpar.run.executor import Executor
from hpcpar.run.feed import Feed, on_device
from hpcpar.run.recorder import Recorder


@dataclass(frozen=True)
class Result:
    """What a step came to: the same on every rank. The norm is None where a schedule has no common version to take it of."""

    loss: float
    tokens: int  # labels that count
    grad_norm: float | None
    skipped: bool
    seconds: float
    worker: int | None = None  # whose step it is, where each worker has steps of its own
    auxiliary: float = 0.0  # losses of the routers, beside `loss`


class Trainer(ABC):
    """This rank's part of a run; `until` makes steps."""

    shares_state: ClassVar[bool] = True  # the replicas of a stage hold the same optimizer state
    sums_losses: ClassVar[bool] = False  # in every step, over all ranks: rank 0's word travels along
    skipping: ClassVar[str] = "the update is skipped on all ranks"

    def __init__(self, config: Config, pipeline: Pipeline, feed: Feed, recorder: Recorder, xp: Any):
        self.config, self.pipeline, self.feed, self.recorder, self.xp = config, pipeline, feed, recorder, xp
        self.world, self.parts = pipeline.world, pipeline.parts
        self.frame = pipeline.frame
        self.names = [name for name, p in parameters(config.model).items() if p.trained]
        self.steps = 0
        self.due: Callable[[], bool] = lambda: False  # whether rank 0 wants all ranks to stop after this step, to compare clocks
        self.asked = False  # whether it wanted it in the last one; the same on every rank
        self.wish: Callable[[], bool] = lambda: False  # whether this rank wants to stop
        self.stopping = False  # whether any did, as all know: no step follows
        self.watch: Callable[[dict[int, dict[str, Any]]], None] | None = None  # sees {stage: {name: gradient}} before each update
        rows = self.frame.shard(feed.size * feed.positions)
        shape = (rows.stop - rows.start, config.model.width)
        self.executor = Executor(self.world, self.parts, pipeline.peer, recorder, shape, lambda s: xp.empty(s, config.train.precision))
        self._samples: dict[int, tuple[Any, Any]] = {}

    @abstractmethod
    def until(self, step: int) -> Iterator[Result]:
        """Make the steps up to `step`, at which the pipeline is drained; collective."""

    def start(self) -> None:
        """Set the first weights."""
        for part in self.parts.values():
            part.start(self.config.train.seed)

    def resume(self, steps: int) -> None:
        """The weights are those after `steps` steps."""
        self.steps = steps

    def extras(self) -> Iterator[Tensor]:
        """State besides weights and optimizer that a run needs to go on: what compression still owes."""
        return owed.tensors(self.parts)

    def restore_extras(self, found: checkpoint.Checkpoint) -> None:
        """Read what `extras` wrote; raises PlanError where another plan cannot go on from it."""
        owed.restore(self.parts, found)

    def _taken(self, k: int, step: int, microbatch: int) -> tuple[Any, Any]:
        """ids (B, T) and labels (B*T,) on the device, kept under `k` from the forward to the backward."""
        if k not in self._samples:
            ids, labels = self.feed.take(step, microbatch)
            self._samples[k] = on_device(ids, self.xp), on_device(labels, self.xp)
        return self._samples[k]
