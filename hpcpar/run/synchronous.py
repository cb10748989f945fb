"""Synchronous training: a step is one run through the schedule's lists, then one update.

count unmasked labels -> F, B, messages, buckets -> norm, clip, update -> loss of all ranks
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from hpcpar.nn.context import Microbatch
from hpcpar.nn.gradients import Gradients
from hpcpar.optim import coefficient, rate
from hpcpar.parallel.norm import gradient_norm
from hpcpar.parallel.tied import Exchange
from hpcpar.parallel.zero.gradients import Streamed
from hpcpar.run.owed import compressed_parts
from hpcpar.run.part import Part
from hpcpar.run.routing import settle
from hpcpar.run.trainer import Result, Trainer


class Synchronous(Trainer):
    """Steps one after the other, each with a flush."""

    sums_losses: ClassVar[bool] = True

    _count = 0
    _norm: float | None = None
    _scale: float | None = None

    def until(self, step: int) -> Iterator[Result]:
        """Make the steps up to `step`, one by one."""
        while self.steps < step and not self.stopping:
            yield self.step()

    def step(self) -> Result:
        """The next step of the run; collective."""
        start, plan = time.perf_counter(), self.config.plan
        self.recorder.begin(self.steps + 1)
        self._samples.clear()
        self.executor.losses.clear()
        self._norm = None
        for part in self.parts.values():
            part.gradients.begin()
            if part.buckets:
                part.buckets.begin()
            if part.shared:
                part.shared.begin()
        self._count = self._unmasked(plan.microbatches * plan.accumulate)
        self.executor.run(self.pipeline.actions, self)
        loss = self._loss()
        (auxiliary,) = settle(self, self.steps, self.steps + 1)
        self.steps += 1
        return Result(loss, self._count, self._norm, self._scale is None, time.perf_counter() - start, auxiliary=auxiliary)

    def _unmasked(self, microbatches: int) -> int:
        """Labels that count, of the whole global batch."""
        c = self.feed.corpus
        if not c.ignore:
            return self.config.train.batch * c.context
        count = np.array([self.feed.unmasked(self.steps, microbatches)], np.int64)
        group = self.pipeline.data_group
        if group:
            group.allreduce(count, "sum", "loss")
        return int(count[0])

    def _loss(self) -> float:
        """The sum of the losses of all ranks over the number of unmasked labels."""
        sums = np.array([self._own_loss(), float(self.wish()), self.due()])
        if self.world.size > 1:
            self.world.allreduce(sums, "sum", "loss")
        self.stopping, self.asked = bool(sums[1]), bool(sums[2])
        return float(sums[0]) / self._count if self._count else 0.0

    def _own_loss(self) -> float:
        """The sum of the losses that this rank counts, in order of microbatches."""
        losses, total = self.executor.losses, 0.0
        for k in sorted(losses) if self.pipeline.leads else ():
            total += losses[k]
        return total

    # what the executor asks for

    def microbatch(self, k: int) -> Microbatch:
        """Where microbatch k stands."""
        first, batch = self.feed.first(k), self.config.train.batch
        return Microbatch(self.frame, self.feed.size, self.feed.positions, self.steps, first, batch=batch)

    def ids(self, k: int) -> Any:
        """ids (B, T) of microbatch k."""
        return self._taken(k, self.steps, k)[0]

    def labels(self, k: int) -> Any:
        """labels (B*T,) of microbatch k."""
        return self._taken(k, self.steps, k)[1]

    def scale(self, k: int) -> float:
        """One over the unmasked labels of the global batch: never a mean of means."""
        return 1.0 / self._count if self._count else 0.0

    def gradients(self, part: Part, k: int) -> Gradients | Streamed:
        """The one buffer of a part; complete after the last microbatch whose weight gradient this rank makes."""
        part.gradients.last = self.pipeline.final[part.index] == k
        return part.gradients

    def done(self, part: Part, k: int) -> None:
        """Nothing is freed before the end of the step."""

    def reduce(self, part: Part, version: int | None) -> None:
        """D: most buckets left when they were full; whoever updates waits for them."""
        if part.shared:
            part.shared.finish()
        if part.buckets:
            part.buckets.start()
        self.world.progress()

    def tied(self, part: Part, version: int | None) -> None:
        """T: sum the two uses of a tied weight that stands on two stages."""
        peer = self.pipeline.tied_peer(part)
        gradient = self._summed(part)
        if not isinstance(peer, Part):
            Exchange(self.world, gradient, peer, part.index).finish()
        elif part.stage.first:  # both uses are on this rank: once, for both
            other = self._summed(peer)
            gradient += other
            other[...] = gradient

    @staticmethod
    def _summed(part: Part) -> Any:
        if part.buckets:
            part.buckets.finish()
        return part.tied_gradient(part.gradients)

    def norm(self, part: Part, version: int | None) -> None:
        """N: the norm is taken once for all parts, by the first update."""

    def update(self, part: Part, version: int | None) -> None:
        """U: apply the gradients, once the norm of all ranks' gradients is known."""
        start = time.perf_counter_ns()
        if self._norm is None:
            self._settle()
        part.advance(part.newest + 1, False, part.gradients, rate(self.config.train, self.steps), self._scale)
        self.recorder.compute("update", start, part.index, version=part.newest)

    def _settle(self) -> None:
        """Wait for the sums, find the norm and what to do with it: the same on every rank."""
        mine: dict[str, list[Any]] = {}
        for part in self.parts.values():
            if part.shared:
                part.shared.finish()
            if part.buckets:
                part.buckets.finish()
            mine.update(part.counted_gradients(part.gradients, self.pipeline.rank))
        if self.watch:
            self.watch({s: part.gradients_by_name(part.gradients) for s, part in self.parts.items()})
        self._norm = gradient_norm(self.names, mine, self.pipeline.norm_group, self.pipeline.place)
        self._scale = coefficient(self._norm, self.config.train.clip) if self._count else None
        for _, compressed in compressed_parts(self.parts):
            compressed.settle(self._scale is not None)
