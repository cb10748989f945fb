"""A routing that several ranks share: those that hold positions of its samples, and those that cut its experts.

    cp   rank 0   scores of its tokens  --+-- all-gather --  scores of whole groups --+-- its own tokens' rows --> its experts' inner slice
         rank 1   scores of its tokens  --+                  decided by both alike  --+-- its own tokens' rows

    tp   rank 0   results of its slice of the inner width: partial sums --+-- combine -- leave: the sum
         rank 1   the same rows, partial sums of its own slice          --+
         backward: dweights = rows . dy of partial sums are partial too: one all-reduce of a number a row, while the experts' backward runs

Decisions are made from the same bits by the same arithmetic, and so they are the same; nothing but scores is sent for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.forms.context import length, runs
from hpcpar.layout import cut
from hpcpar.nn.context import Frame, Inner, Microbatch, Scores
from hpcpar.ops.array import array_module


class Gathered(Scores):
    """Scores of samples whose positions lie on the ranks of `group`; the first of them counts a group's auxiliary losses."""

    def __init__(self, group: Group, form: str, positions: int):
        self._group, self._positions = group, positions
        self._runs = [runs(form, positions, group.size, i) for i in range(group.size)]
        self.counts = group.index == 0

    def whole(self, z: Any, at: Microbatch) -> Any:
        """z (B*T, R) of the positions here -> (B * all positions, R), in order; every rank gets the same bits."""
        xp, (samples, width) = array_module(z), (at.samples, z.shape[1])
        counts = [samples * length(held) * width for held in self._runs]
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        flat, mine = xp.empty(starts[-1], z.dtype), self._group.index
        flat[starts[mine] : starts[mine + 1]] = z.reshape(-1)
        self._group.allgather_start(flat, counts, "scores").wait()
        out = xp.empty((samples, self._positions, width), z.dtype)
        for i, held in enumerate(self._runs):
            piece, row = flat[starts[i] : starts[i + 1]].reshape(samples, -1, width), 0
            for run in held:
                out[:, run] = piece[:, row : row + run.stop - run.start]
                row += run.stop - run.start
        return out.reshape(-1, width)


class Cut(Inner):
    """A slice of every expert on each rank of `group`; the first of them adds the biases behind the sum."""

    def __init__(self, group: Group):
        self._group = group
        self.biased = group.index == 0

    def first(self, width: int) -> int:
        """The first of the columns here, of an inner width."""
        return cut(width, self._group.size, self._group.index).start

    def start(self, dweights: Any) -> tuple[Any, Pending]:
        """Begin to sum dweights (A,) over the ranks, in place."""
        return dweights, self._group.allreduce_start(dweights, "sum", "combine_weights")

    def finish(self, begun: tuple[Any, Pending]) -> Any:
        """The sum (A,)."""
        dweights, pending = begun
        pending.wait()
        return dweights


def share(frame: Frame, samples: Group | None, layers: Group | None, form: str) -> Frame:
    """The frame of a rank that shares samples, cut by `form`, with one group of ranks and layers with another; None: with nobody."""
    if samples is not None:
        frame = replace(frame, scores=Gathered(samples, form, frame.model.context))
    return frame if layers is None else replace(frame, inner=Cut(layers))
