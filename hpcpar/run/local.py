"""Local SGD: replicas step on their own, each on its share of every batch, and are averaged every `every` steps.

    replica 0   | step 1 | step 2 | step 3 |          | step 4 | ...        every = 3
    replica 1   | step 1   | step 2  | step 3  |      | step 4 | ...        none waits for another but at the average
                                               average, outer step, results of the three steps

A replica is a whole pipeline, with a count of labels, a gradient norm, a clip and an optimizer state of its own. A step whose norm is not
finite on one replica is skipped by that replica alone, and its labels have no part in the weights of the average. `until` ends with an
average, so that evaluation, checkpoints and the end of a run, whose last period may be shorter, see one model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcpar import checkpoint
from hpcpar.checkpoint.store import Tensor
from hpcpar.parallel.average import Average
from hpcpar.parallel.outer import Outer
from hpcpar.parallel.tied import follow
from hpcpar.run import replicas
from hpcpar.run.part import Part
from hpcpar.run.synchronous import Synchronous
from hpcpar.run.trainer import Result


class Local(Synchronous):
    """Periods of steps without a word to other replicas, each with an average behind it."""

    shares_state, sums_losses = False, False
    skipping = "the update is skipped on the replicas that have it"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        sync, xp, dtype = self.config.plan.sync, self.xp, self.config.train.precision
        outer = Outer(sync.outer_rate, sync.outer_momentum)
        self.averages: dict[int, Average] = {}
        for s, part in self.parts.items():
            assert part.group is not None
            self.averages[s] = Average(part.map.size, xp, dtype, part.group, s, outer)
            part.beside["outer"] = self.averages[s].held_bytes()

    def start(self) -> None:
        """Set the first weights, from which the first period starts."""
        super().start()
        self._anchor()

    def resume(self, steps: int) -> None:
        """The weights are those after `steps` steps and an average."""
        super().resume(steps)
        self._anchor()

    def extras(self) -> Iterator[Tensor]:
        """The optimizer state of each replica, and the outer momentum."""
        yield from super().extras()
        yield from replicas.own_tensors(self)
        yield from replicas.outer_tensors(self, {s: a.v for s, a in self.averages.items()})

    def restore_extras(self, found: checkpoint.Checkpoint) -> None:
        """Read what `extras` wrote; a checkpoint of another mode has one optimizer state for all, and no outer momentum."""
        super().restore_extras(found)
        replicas.restore_own(self, found)
        replicas.restore_outer(self, {s: a.v for s, a in self.averages.items()}, found)

    def until(self, step: int) -> Iterator[Result]:
        """Make the steps up to `step`; the results of a period are known at its average."""
        every = self.config.plan.sync.every
        while self.steps < step and not self.stopping:
            yield from self._period(min(step, every * (self.steps // every + 1)))

    def _period(self, last: int) -> Iterator[Result]:
        first = self.steps
        mine = np.zeros((last - first, 4))  # of this rank: loss; of this replica, counted by one rank: labels, labels x norm, skips
        counts, applied, seconds = self.pipeline.rank == 0 and self.pipeline.leads, 0, []
        for row in mine:
            result = self.step()
            assert result.grad_norm is not None
            row[0] = self._own_loss()
            if counts:
                row[1:] = result.tokens, result.tokens * result.grad_norm, not math.isfinite(result.grad_norm)
            applied += 0 if result.skipped else result.tokens
            seconds.append(result.seconds)
            self.recorder.flush()
        start = time.perf_counter()
        found, labels = self._gathered(mine, applied if counts else 0)
        self._average(labels)
        seconds[-1] += time.perf_counter() - start
        for t, (loss, tokens, norm, skips) in enumerate(found.tolist()):
            self.steps = first + t + 1
            self.recorder.begin(self.steps)
            of = tokens or 1.0
            yield Result(loss / of, int(tokens), norm / of, skips > 0 or not tokens, seconds[t])

    def _gathered(self, mine: np.ndarray, applied: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of all ranks added up, and the labels of the steps that each replica took (dp,)."""
        labels = np.zeros(self.config.plan.dp)
        labels[self.pipeline.replica] = applied
        both = np.concatenate([mine.reshape(-1), labels, [float(self.wish())]])
        self.world.allreduce(both, "sum", "loss")
        self.stopping = both[-1] > 0
        return both[: mine.size].reshape(mine.shape), both[mine.size : -1]

    def _average(self, labels: np.ndarray) -> None:
        """One model from all replicas, weighted by their labels (dp,); where none took a step, all hold it already."""
        most = float(labels.max())
        if not most:
            return
        start = time.perf_counter_ns()
        for s, average in self.averages.items():
            average.start(self.parts[s].flat, float(labels[self.pipeline.replica]) / most)
        for s, average in self.averages.items():
            average.mean(self.parts[s].flat, float((labels / most).sum()))
        self._tie()
        for s, average in self.averages.items():
            average.step(self.parts[s].flat)
            self.recorder.compute("update", start, s, version=self.parts[s].newest)

    def _tie(self) -> None:
        """The head's copy of a tied weight takes the bits of the embedding's: two sums of many replicas may round apart."""
        for s, part in self.parts.items():
            if self.pipeline.program.has_tie(s):
                peer, weight = self.pipeline.tied_peer(part), part.weights_by_name()["tokens.weight"]
                if not isinstance(peer, Part):
                    follow(self.world, weight, peer, s, part.stage.first)
                elif not part.stage.first:
                    weight[...] = peer.weights_by_name()["tokens.weight"]

    def _anchor(self) -> None:
        for s, average in self.averages.items():
            average.anchor(self.parts[s].flat)

    # what a step asks for

    def _unmasked(self, microbatches: int) -> int:
        """Labels that count, of this replica's share of the batch."""
        c, plan = self.feed.corpus, self.config.plan
        return self.feed.unmasked(self.steps, microbatches) if c.ignore else self.config.train.batch // plan.dp * c.context

    def _loss(self) -> float:
        """What is known of the loss before the average: this rank's."""
        return self._own_loss() / self._count if self._count else 0.0
