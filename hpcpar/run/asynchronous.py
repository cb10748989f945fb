"""Asynchronous pipelines: a stream of actions from drain to drain, weight versions and open gradients as the schedule names them.

microbatch k      uses version flow.version(stage, k) in both passes, and belongs to the version that its gradient makes
D4 T4 N4          start the sums of version 4's gradients over replicas, of a tied weight's two uses, of the norm: none waits
U4                waits for them, then makes version 4 from the newest weights, in a copy where the old ones are still in use
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.nn.context import Microbatch
from hpcpar.nn.gradients import Gradients
from hpcpar.optim import coefficient, rate
from hpcpar.parallel import tied
from hpcpar.parallel.norm import Shares, norm_of, squares_of
from hpcpar.run.part import Part
from hpcpar.run.routing import settle
from hpcpar.run.streams import Listed, flow_of, streamed
from hpcpar.run.trainer import Result, Trainer
from hpcpar.schedule.flow import Flow


@dataclass
class Open:
    """The gradients of one version in the making, and the sums on their way."""

    gradients: Any
    reduced: Sequence[Pending] = ()
    tie: tied.Exchange | None = None
    squares: np.ndarray | None = None
    norm: Shares | None = None
    shared: bool = False  # gradients that tensor-parallel ranks make together are summed


class Asynchronous(Trainer):
    """One stage a rank, without flushes but at the drains."""

    flow: Flow | Listed

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        (self.part,) = self.parts.values()
        self._free: list[Any] = [self.part.gradients]
        self._open: dict[int, Open] = {}
        self._squares: dict[int, np.ndarray] = {}  # by version; the norms of a schedule that does not wait for them
        self._norms: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._next = 0  # the oldest microbatch of this rank that is not done
        self._common = self.pipeline.schedule.rule != "stashing"

    def until(self, step: int) -> Iterator[Result]:
        """Make the steps up to `step`, a drain; their results are known there."""
        if step <= self.steps:
            return
        start, first = time.perf_counter(), self.steps
        self.flow = flow_of(self.config, first, step)
        f = self.flow
        stage, replica = f.place(self.pipeline.rank)
        self._next = f.first + (replica - f.first) % f.replicas[stage]  # microbatch k runs on replica k mod r
        self._counts.clear()
        self._norms.clear()
        self._squares.clear()
        self.executor.run(streamed(self.config, self.flow, self.pipeline.rank), self)
        losses, norms = self._gathered(first, step)
        auxiliary = settle(self, first, step)
        seconds = (time.perf_counter() - start) / (step - first)
        for t in range(first, step):
            self.steps = t + 1
            self.recorder.begin(t + 1)  # what is said of a step belongs to it, and not to the one the stretch ended with
            count = self._count(t)
            norm = norms[t - first] if norms is not None else None
            skipped = not count or (norm is not None and not math.isfinite(norm))
            yield Result(losses[t - first] / count if count else 0.0, count, norm, skipped, seconds, auxiliary=auxiliary[t - first])

    def resume(self, steps: int) -> None:
        """The weights are those after `steps` steps: version `steps` on every stage."""
        super().resume(steps)
        self.part.rename(steps)

    def _gathered(self, first: int, step: int) -> tuple[list[float], list[float] | None]:
        """Summed losses and gradient norms of the steps of a stretch, on every rank."""
        sums = np.zeros(step - first + 1)
        sums[-1] = self.wish()
        for k in sorted(self.executor.losses) if self.pipeline.leads else ():
            sums[k // self.flow.group - first] += self.executor.losses[k]
        self.executor.losses.clear()
        if self.world.size > 1:
            self.world.allreduce(sums, "sum", "loss")
        *losses, stops = sums.tolist()
        self.stopping = stops > 0
        if self._common:
            return losses, [self._norms[t + 1] for t in range(first, step)]
        if max(self.flow.replicas) > 1:
            return losses, None  # versions of different stages do not correspond
        squares = np.stack([self._squares[t + 1] for t in range(first, step)])
        group = self.pipeline.norm_group
        if group:
            group.allreduce(squares, "sum", "norm")
        return losses, [norm_of(row) for row in squares]

    # numbers

    def _version_of(self, k: int) -> int:
        """The version that microbatch k's gradient makes."""
        f = self.flow
        if f.rule == "2bw":
            return k // f.group + 1
        r = f.replicas[self.part.index]
        return min(f.first + r * ((k - f.first) // r + 1), f.last)

    def _round(self, version: int) -> int:
        """Minibatches whose gradients a version averages."""
        f = self.flow
        r = f.replicas[self.part.index]
        return 1 if f.rule == "2bw" else version - (f.first + r * ((version - 1 - f.first) // r))

    def _used(self, newest: int) -> set[int]:
        """The versions before `newest` that microbatches of this rank, from the oldest that is not done, still use."""
        f, k, used = self.flow, self._next, set()
        while k < f.last and (version := f.version(self.part.index, k)) < newest:
            used.add(version)
            k += f.replicas[self.part.index]
        return used

    def _count(self, step: int) -> int:
        """Labels that count in a step's batch: read from the data, so that no rank waits for another."""
        if step not in self._counts:
            c, batch = self.feed.corpus, self.config.train.batch
            self._counts[step] = int(np.count_nonzero(c.batch(step * batch, batch)[1] >= 0)) if c.ignore else batch * c.context
        return self._counts[step]

    # what the executor asks for

    def microbatch(self, k: int) -> Microbatch:
        """Where microbatch k stands; its events belong to its step."""
        step, place = divmod(k, self.flow.group)
        self.recorder.begin(step + 1)
        first, batch = self.feed.first(place), self.config.train.batch
        return Microbatch(self.frame, self.feed.size, self.feed.positions, step, first, batch=batch)

    def ids(self, k: int) -> Any:
        """ids (B, T) of microbatch k."""
        return self._taken(k, *divmod(k, self.flow.group))[0]

    def labels(self, k: int) -> Any:
        """labels (B*T,) of microbatch k."""
        return self._taken(k, *divmod(k, self.flow.group))[1]

    def scale(self, k: int) -> float:
        """One over the unmasked labels of the step's batch."""
        count = self._count(k // self.flow.group)
        return 1.0 / count if count else 0.0

    def gradients(self, part: Part, k: int) -> Gradients:
        """The buffer of the version that microbatch k belongs to."""
        f = self.flow
        out = self._opened(self._version_of(k)).gradients
        out.last = f.rule != "2bw" or (k + 1) % f.group == 0
        return out

    def done(self, part: Part, k: int) -> None:
        """Microbatch k has left: free its samples, and the versions that no later one uses."""
        self._samples.pop(k, None)
        self._next = k + self.flow.replicas[part.index]
        used = self._used(part.newest)
        for version in part.versions:
            if version not in used:
                part.drop(version)
        self._held()

    def reduce(self, part: Part, version: int | None) -> None:
        """D: start the sum over replicas; one without a microbatch in a partial round adds zeros."""
        assert version is not None
        fresh = version not in self._open
        at = self._opened(version)
        if fresh:
            at.gradients.flat[...] = 0
        self._share_sums(at)
        at.reduced = part.sum_start(at.gradients, self.config.plan.sync.algorithm)

    def tied(self, part: Part, version: int | None) -> None:
        """T: start the exchange of the tied weight's two uses."""
        assert version is not None
        at, peer = self._open[version], self.pipeline.tied_peer(part)
        assert isinstance(peer, int)
        self._complete(at, False)
        at.tie = tied.Exchange(self.world, part.tied_gradient(at.gradients), peer, part.index)

    def norm(self, part: Part, version: int | None) -> None:
        """N: this stage's squares leave for all stages."""
        assert version is not None
        at = self._open[version]
        self._complete(at, part.stage.first)
        at.squares = self._share(at)
        if self.pipeline.norm_group:
            at.norm = Shares(self.world, at.squares, self.pipeline.norm_group, part.index)

    def update(self, part: Part, version: int | None) -> None:
        """U: make a version."""
        assert version is not None
        at = self._open.pop(version)
        self._complete(at, True)
        if at.norm:
            at.squares = at.norm.finish()
        start = time.perf_counter_ns()
        self.recorder.begin(version)
        scale = self._scale(version, at)
        if self.watch:
            self.watch({part.index: part.gradients_by_name(at.gradients)})
        needed = part.newest in self._used(version)
        part.advance(version, needed, at.gradients, rate(self.config.train, version - 1), scale)
        self._free.append(at.gradients)
        self.recorder.compute("update", start, part.index, version=version)
        self._held()
        self.recorder.flush()

    def _scale(self, version: int, at: Open) -> float | None:
        """What the summed gradient is multiplied by; None skips the update."""
        n = self._round(version)
        steps = range(version - 1, version) if self.flow.rule == "2bw" else range(version - n, version)
        counted = any(self._count(t) for t in steps)
        if self._common:
            assert at.squares is not None
            norm = self._norms[version] = norm_of(at.squares) / n
            scale = coefficient(norm, self.config.train.clip)
        else:
            self._squares[version] = self._share(at) / n**2
            scale = coefficient(norm_of(self._squares[version]), 0.0)  # this stage's alone: no other has this version
        return scale / n if counted and scale is not None else None

    def _share(self, at: Open) -> np.ndarray:
        return squares_of(self.names, self.part.counted_gradients(at.gradients, self.pipeline.rank))

    def _complete(self, at: Open, tie: bool) -> None:
        self._share_sums(at)
        for pending in at.reduced:
            pending.wait()
        if at.tie and tie:
            at.tie.finish()

    def _share_sums(self, at: Open) -> None:
        """Sum what tensor-parallel ranks make together, once, before the sum over replicas, which may leave each rank a shard."""
        if self.part.shared and not at.shared:
            self.part.shared.sum(at.gradients.flat)
            at.shared = True

    def _opened(self, version: int) -> Open:
        if version not in self._open:
            gradients = self._free.pop() if self._free else Gradients(self.part.map, self.xp, self.config.train.precision)
            gradients.begin()
            self._open[version] = Open(gradients)
            self._held()
        return self._open[version]

    def _held(self) -> None:
        self.recorder.memory("parameters", self.part.held_bytes()["parameters"])
        held = [o.gradients.held_bytes() for o in self._open.values()]
        for kind in self.part.gradients.held_bytes():
            self.recorder.memory(kind, sum(h[kind] for h in held))
