"""Stale and asynchronous data parallelism: each worker goes through clocks of its own, and the weights live on a parameter server.

worker 0   clock 1 | push pull | clock 2 | push pull | clock 3 | push ........ pull |
worker 1   clock 1               | push pull | clock 2                | push . pull |      a drain: all clocks, all updates, one model

    asp                 update of the owners: lr(clock) / N x each worker's own gradient, of its share of the batch, over its own labels
    ssp                 the same; a worker at most `staleness` clocks ahead of the slowest
    ssp, staleness 0    lr(clock) x the gradient of the whole batch, over all its labels: bulk synchronous

The drains are those of every run: evaluation, checkpoint and end. Between them `until` keeps one server (parallel/server.py), so that at a
drain nothing is under way, and what a checkpoint needs lies in this rank's part and shard.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcpar import checkpoint
from hpcpar.checkpoint.store import Tensor
from hpcpar.comm.window import require_threads
from hpcpar.layout import cut
from hpcpar.ops.update import square_sum
from hpcpar.optim import coefficient, rate, segments_of, within
from hpcpar.parallel.norm import norm_of
from hpcpar.parallel.server import Pulled, Server, Shard
from hpcpar.run.part import Part
from hpcpar.run.synchronous import Synchronous
from hpcpar.run.trainer import Result


class Stale(Synchronous):
    """A worker, and the owner of a shard."""

    sums_losses = False

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        sync = self.config.plan.sync
        require_threads(sync.mode)
        (self.part,) = self.parts.values()
        self.part.buckets = self.part.gradients.ready = None  # gradients are pushed, not summed over the replicas
        self.part.state = {}  # the owners have it
        here = cut(self.part.map.size, self.world.size, self.world.rank)
        rule, dtype = self.part.rule, self.config.train.precision
        state = rule.state(here.stop - here.start, np, dtype)
        segments = within(segments_of(self.part.map.parameters.values()), here.start, here.stop)
        self.shard = Shard(here.start, here.stop, rule, state, segments)
        self.together = sync.mode == "ssp" and sync.staleness == 0
        self.updates: Any = None  # a test's: sees (worker, clock, gradient, scale) of each update of the shard
        self.pulls: list[tuple[int, Pulled]] = []  # the clock after which it was made, and what it found; since the last drain
        self._norms: dict[int, float] = {}
        self._server: Server

    def until(self, step: int) -> Iterator[Result]:
        """Make the clocks up to `step`, at which all workers have the same weights; results come by clock and worker."""
        if step <= self.steps:
            return
        first = self.steps
        self.pulls.clear()
        self._norms.clear()
        self.shard.applied = self.part.applied
        self._open(first)
        try:
            mine = [self._clock(step) for _ in range(first, step)]
        except BaseException:
            self._server.stop()
            raise
        self._server.close()
        self.part.applied = self.shard.applied
        found = self.world.share(self.world.gather((mine, self.wish())))
        everyone, self.stopping = [rows for rows, _ in found], any(wish for _, wish in found)
        for t in range(first, step):
            self.steps = t + 1
            for worker, found in enumerate(everyone):
                loss, tokens, norm, skipped, seconds = found[t - first]
                yield Result(loss, tokens, norm, skipped, seconds, worker)

    def _open(self, first: int) -> None:
        c, n, size = self.config, self.world.size, self.part.map.size
        decide = self._decide if self.together else None
        share = 1 if self.together else n
        self._server = Server(
            self.world,
            size,
            c.train.precision,
            self.shard,
            first,
            lambda clock: rate(c.train, clock - 1) / share,
            decide,
            self.updates,
        )
        here = self.part.flat[self.shard.start : self.shard.stop]
        self._server.weights[...] = here if isinstance(here, np.ndarray) else here.get()
        self.recorder.memory("optimizer", self.shard.held_bytes)
        self.recorder.memory("window", self._server.held_bytes)
        self._server.start()

    def _clock(self, last: int) -> tuple[float, int, float, bool, float]:
        """One clock of this worker: its share of the batch, push, pull; the `last` one ends in a drain, whose time it does not count."""
        start, sync = time.perf_counter(), self.config.plan.sync
        clock = self.steps + 1
        self.recorder.begin(clock)
        self._samples.clear()
        self._norm = None
        self.part.gradients.begin()
        mine = self.feed.unmasked(self.steps, self.config.plan.microbatches * self.config.plan.accumulate)
        self._count = self.feed.counted(self.steps) if self.together else mine
        self.executor.run(self.pipeline.actions, self)
        losses = self.executor.losses
        loss = sum(losses[k] for k in sorted(losses)) / mine if mine else 0.0
        gradient = self.part.gradients.flat[: self.part.map.size]
        self._server.push(clock, gradient, 1.0 if self.together else self._scale, not self.together)
        self.steps = clock
        if clock < last and sync.mode == "ssp":
            self._server.wait(clock - sync.staleness)
        if clock < last:
            self._pull(clock)
        seconds = time.perf_counter() - start
        if clock == last:
            self._drain(clock)
        norm, skipped = (self._norms[clock], self._skips(clock)) if self.together else (self._norm, self._scale is None)
        assert norm is not None
        for name, value in (("loss", loss), ("grad_norm", norm), ("tokens", mine), ("seconds", seconds)):
            self.recorder.metric(name, value)
        self.recorder.flush()
        return loss, mine, norm, skipped, seconds

    def _pull(self, clock: int) -> None:
        found = self._server.pull(self.part.flat)
        self.pulls.append((clock, found))
        self.recorder.metric("staleness", clock - found.slowest)

    def _drain(self, step: int) -> None:
        """All clocks of all workers are applied, then everyone pulls; nobody goes on before."""
        self._server.wait(step, "barrier")
        self._pull(step)
        self.world.barrier()

    # what the owner of a shard and the executor ask for

    def _decide(self, clock: int, total: Any) -> float | None:
        """Of the sum of a clock's gradients: the norm over all shards, in name order, and what it says; the same on every owner."""
        squares = np.zeros(len(self.names))
        for i, name in enumerate(self.names):
            at = self.part.map.names[name]
            low, high = max(at.start, self.shard.start), min(at.stop, self.shard.stop)
            if low < high:
                squares[i] = square_sum(total[low - self.shard.start : high - self.shard.start])
        whole = sum(self._server.gather(squares), np.zeros(len(self.names)))
        self._norms[clock] = norm_of(whole)
        return None if self._skips(clock) else coefficient(self._norms[clock], self.config.train.clip)

    def _skips(self, clock: int) -> bool:
        return coefficient(self._norms[clock], 0.0) is None or not self.feed.counted(clock - 1)

    def update(self, part: Part, version: int | None) -> None:
        """U: this worker's own gradient is complete; the owners make the update."""
        if self.together:
            if self.watch:
                self.watch({part.index: part.gradients.by_name()})
        else:
            self._settle()

    # checkpoints: optimizer state by name, each owner its boxes

    def extras(self) -> Iterator[Tensor]:
        """The optimizer state of this rank's shard."""
        for kind, name, slices, values in self._boxes():
            yield kind, name, self.part.map.names[name].shape, slices, values

    def restore_extras(self, found: checkpoint.Checkpoint) -> None:
        """Read the optimizer state of this rank's shard from a checkpoint of any plan."""
        for kind, name, slices, values in self._boxes():
            values[...] = found.read(kind, name, slices)

    def _boxes(self) -> Iterator[tuple[str, str, tuple[slice, ...], Any]]:
        start, places = self.shard.start, self.part.map.names
        for kind, flat in self.shard.state.items():
            for name, slices, low, high in checkpoint.boxes_within(places, start, self.shard.stop):
                shape = tuple(s.stop - s.start for s in slices)
                yield f"{self.config.train.optimizer}.{kind}", name, slices, flat[low - start : high - start].reshape(shape)
