"""Gradients that several tensor-parallel ranks make together, summed over those ranks once a step.

    flat gradients   | norms, positions | ... key, value ... |        with sequence parallelism: the first slice, over all tp;
                     |<- over all tp -->|     |<- holders ->|         with fewer key/value heads than ranks: those, over the ranks
                                                                      that hold the same one
    backward --> finish: one all-reduce for each set of ranks --> on to the buckets over dp

Without sequence parallelism the first kind agrees on all ranks already and is not summed.

Key/value heads that several ranks hold lie at different places of each one's flat array, and a sum over three replicas or more may depend
on the place in its last bits. Theirs is therefore made over holders and replicas at once: `groups` then has the ranks of all replicas. The
first one keeps the sum and the others put `zeros` there, which the sum over replicas adds without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcpar.comm.world import Group
from hpcpar.nn.parameters import FlatMap
from hpcpar.ops.array import array_module


def spans_of(at: FlatMap) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """{holders along tp: the (start, stop) of what they sum}, neighbours joined."""
    out: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for name, span in at.names.items():
        p = at.parameters[name]
        if p.piece and p.summed:
            mine = out.setdefault(p.piece.holders, [])
            if mine and mine[-1][1] == span.start:
                mine[-1] = (mine[-1][0], span.stop)
            else:
                mine.append((span.start, span.stop))
    return out


class Shared:
    """The shared gradients of one stage; finished spans pass through `ready` to `onward`, those with shared ones after the sum."""

    def __init__(self, at: FlatMap, flat: Any, groups: Mapping[tuple[int, ...], Group], stage: int, zeros: bool = False):
        self._flat, self._stage, self._zeros = flat, stage, zeros
        self._spans = [(groups[holders], spans) for holders, spans in sorted(spans_of(at).items())]
        self._late: list[tuple[int, int]] = []
        self._done = False
        self.onward: Callable[[int, int], None] | None = None

    def begin(self) -> None:
        """Start a step."""
        self._late.clear()
        self._done = False

    def ready(self, start: int, stop: int) -> None:
        """The gradients of [start, stop) are complete on this rank."""
        if any(start < high and low < stop for _, spans in self._spans for low, high in spans):
            self._late.append((start, stop))
        elif self.onward:
            self.onward(start, stop)

    def finish(self) -> None:
        """All gradients are complete on this rank: sum the shared ones, once a step, and let them go on."""
        if self._done:
            return
        self._done = True
        self.sum(self._flat)
        for span in self._late if self.onward else ():
            self.onward(*span)  # type: ignore[misc]

    def sum(self, flat: Any) -> None:
        """Sum the shared ones of a flat array of gradients over their holders, in place."""
        arriving = []
        for group, spans in self._spans:
            pieces = [flat[a:b] for a, b in spans]
            buffer = pieces[0] if len(pieces) == 1 else array_module(flat).concatenate(pieces)
            arriving.append((group.allreduce_start(buffer, "sum", "shared", stage=self._stage), buffer, pieces))
        for pending, buffer, pieces in arriving:
            pending.wait()
            if self._zeros:
                for piece in pieces:
                    piece[...] = 0
            elif len(pieces) > 1:
                at = 0
                for piece in pieces:
                    piece[...] = buffer[at : at + piece.size]
                    at += piece.size
