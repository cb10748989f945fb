"""Sequence parallelism, on top of tensor parallelism: outside of f and g each rank has its rows of the B*T alone.

                forward                                  backward
    f, enter    all-gather of rows                       reduce-scatter of dh, while W of the same linear runs
    g, leave    reduce-scatter of partial sums           all-gather of dy

f's input is kept as the rank's own rows and gathered again for W: under the product dy w where W follows in the same action, in W
itself where that is an action of its own. Rows are cut unevenly where t does not divide B*T. Korthikanti et al., arXiv:2205.05198,
section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.layout import cut
from hpcpar.nn.context import Boundary, Microbatch
from hpcpar.ops.array import array_module


@dataclass(frozen=True)
class Arriving:
    """An array on its way."""

    array: Any
    pending: Pending

    def take(self) -> Any:
        """The array, once it is complete."""
        self.pending.wait()
        return self.array


def gather(x: Any, at: Microbatch, group: Group) -> Arriving:
    """Begin to bring the rows x of all ranks together: -> (B*T, D). The adjoint of `scatter`."""
    rows, width = at.samples * at.positions, x.shape[1]
    whole = array_module(x).empty((rows, width), x.dtype)
    whole[cut(rows, group.size, group.index)] = x
    return Arriving(whole, group.allgather_start(whole.reshape(-1), _counts(rows, width, group)))


def scatter(x: Any, group: Group) -> Arriving:
    """Begin to sum x (B*T, D) over the ranks; each gets its rows of the sum."""
    rows, width = x.shape
    mine = cut(rows, group.size, group.index)
    out = array_module(x).empty((mine.stop - mine.start, width), x.dtype)
    return Arriving(out, group.reduce_scatter_start(x.reshape(-1), out.reshape(-1), _counts(rows, width, group)))


def _counts(rows: int, width: int, group: Group) -> list[int]:
    """Elements of each rank's rows."""
    pieces = (cut(rows, group.size, i) for i in range(group.size))
    return [(p.stop - p.start) * width for p in pieces]


class Enter(Boundary):
    """f: rows come together; the gradient is summed and cut into rows."""

    def __init__(self, group: Group):
        self._group = group

    def forward(self, x: Any, at: Microbatch) -> Any:
        """x (this rank's rows, D) -> (B*T, D)."""
        return gather(x, at, self._group).take()

    def start(self, dy: Any, at: Microbatch) -> Any:
        """Begin to sum dy (B*T, D) over the ranks, each to get its rows."""
        return scatter(dy, self._group)

    def finish(self, begun: Any) -> Any:
        """The sum (this rank's rows, D)."""
        return begun.take()

    def again(self, x: Any, at: Microbatch) -> Any:
        """Begin to gather x once more; the rows alone are kept where W runs later."""
        return x if at.split else gather(x, at, self._group)

    def input(self, kept: Any, at: Microbatch) -> Any:
        """x of all ranks (B*T, D)."""
        return (kept if isinstance(kept, Arriving) else gather(kept, at, self._group)).take()


class Leave(Boundary):
    """g: partial sums are added and cut into rows; rows of the gradient come together."""

    def __init__(self, group: Group):
        self._group = group

    def forward(self, x: Any, at: Microbatch) -> Any:
        """x (B*T, D) -> the sum (this rank's rows, D)."""
        return scatter(x, self._group).take()

    def start(self, dy: Any, at: Microbatch) -> Any:
        """Begin to gather dy (this rank's rows, D)."""
        return gather(dy, at, self._group)

    def finish(self, begun: Any) -> Any:
        """dy of all ranks (B*T, D)."""
        return begun.take()
