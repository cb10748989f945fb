"""Tensor parallelism: the boundaries f and g of a block, and a frame that has them.

                forward        backward
    f, enter    identity       all-reduce of dh, while W of the same linear runs
    g, leave    all-reduce     identity

What each rank holds and what is sent: hpcpar/forms/tensor.py. Shoeybi et al., arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcpar.comm.world import Group
from hpcpar.layout import cut
from hpcpar.nn.context import Boundary, Frame, Microbatch
from hpcpar.parallel import sequence
from hpcpar.parallel.vocabulary import Slice


class Enter(Boundary):
    """f: every rank sees all of x; the gradient is the sum of theirs."""

    def __init__(self, group: Group):
        self._group = group

    def start(self, dy: Any, at: Microbatch) -> Any:
        """Begin to sum dy (B*T, D) over the ranks, in place."""
        return dy, self._group.allreduce_start(dy)

    def finish(self, begun: Any) -> Any:
        """The sum."""
        dy, pending = begun
        pending.wait()
        return dy


class Leave(Boundary):
    """g: the partial sums of the ranks are added; every rank sees all of the gradient."""

    def __init__(self, group: Group):
        self._group = group

    def forward(self, x: Any, at: Microbatch) -> Any:
        """x (B*T, D), summed over the ranks in place."""
        return self._group.allreduce(x)


def cut_frame(frame: Frame, group: Group | None, in_rows: bool) -> Frame:
    """The frame of a rank of `group`, the ranks that cut each layer; `in_rows` for sequence parallelism."""
    if group is None:
        return frame
    enter, leave = (sequence.Enter(group), sequence.Leave(group)) if in_rows else (Enter(group), Leave(group))
    frame = replace(frame, enter=enter, leave=leave, vocabulary=Slice(group, leave, frame.model.vocabulary))
    return replace(frame, shard=lambda n: cut(n, group.size, group.index)) if in_rows else frame
