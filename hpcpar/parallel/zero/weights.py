"""The weights of a sharded stage, from the owners to all: after the update (zero 1, 2), or a layer at a time before each use (3).

    zero 3, forward     slot 0   layer 0 computes   layer 2 arrives     layer 2 computes   ...
                        slot 1   layer 1 arrives    layer 1 computes    layer 3 arrives    ...         the backward the other way

A tied weight that one stage uses twice stays in an array of its own from its first use of a pass to the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.forms.zero import Shards
from hpcpar.nn.parameters import FlatMap
from hpcpar.parallel.zero.cut import SLOTS, tied_span, units

TIED = -1  # in the place of a layer's number


def spread_start(flat: Any, shards: Shards, bucket: int, group: Group, stage: int) -> Pending:
    """Start to send this owner's piece of a bucket of flat weights, which stands in place, to all, and to fill in theirs."""
    low, high = shards.buckets[bucket]
    return group.allgather_start(flat[low:high], shards.counts[bucket], stage=stage)


def fill(flat: Any, pieces: Sequence[Any], shards: Shards, group: Group, stage: int) -> None:
    """Put all owners' pieces into a flat array; collective. For who looks at everything: a step never does."""
    for piece, values in zip(shards.pieces(group.index), pieces, strict=True):
        flat[piece.start : piece.stop] = values
    for bucket in range(len(shards.buckets)):
        spread_start(flat, shards, bucket, group, stage).wait()


class Gathered(Sequence[dict[str, Any]]):
    """The weights of each layer by short name, gathered when asked for and the next one started: ascending by iteration, the forward,
    descending by index, the backward. What was handed out is good until the layer after next is asked for.
    """

    def __init__(self, at: FlatMap, shards: Shards, shard: Any, group: Group, stage: int, tied: bool, xp: Any):
        self._map, self._shards, self._shard, self._group, self._stage = at, shards, shard, group, stage
        self._pieces = shards.pieces(group.index)
        self._units = units(at, tied)
        largest = max(high - low for low, high in self._units)
        self._slots = [xp.zeros(largest, shard.dtype) for _ in range(min(SLOTS, len(self._units)))]
        self._apart = tied_span(at, tied)
        low, high = self._apart or (0, 0)
        self._shared = xp.zeros(high - low, shard.dtype)
        self._uses = [any((s.start, s.stop) == self._apart for s in spans.values()) for spans in at.weight_spans]
        self._left = 0  # uses of the tied weight that this pass still has; none: it is to be gathered again
        self._flying: dict[int, list[Pending]] = {}
        self._views = [self._cut(layer) for layer in range(len(self._units))]

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for layer in range(len(self)):
            yield self._take(layer, layer + 1)

    def __getitem__(self, layer: Any) -> Any:
        return self._take(layer, layer - 1)

    def held_bytes(self) -> dict[str, int]:
        """Bytes of the named arrays beside the shard."""
        out = {"gathered weights": sum(s.nbytes for s in self._slots)}
        return {**out, "tied weight": self._shared.nbytes} if self._apart else out

    def _take(self, layer: int, following: int) -> dict[str, Any]:
        self._start(layer)
        if 0 <= following < len(self):
            self._start(following)
        for pending in self._flying.pop(layer):
            pending.wait()
        if self._uses[layer]:
            for pending in self._flying.pop(TIED, []):
                pending.wait()
            self._left -= 1
        return self._views[layer]

    def _start(self, layer: int) -> None:
        if self._uses[layer] and not self._left:
            assert self._apart is not None
            self._left = sum(self._uses)
            self._flying[TIED] = self._gather(self._shared, *self._apart)
        if layer not in self._flying:
            self._flying[layer] = self._gather(self._slots[layer % SLOTS], *self._units[layer])

    def _gather(self, into: Any, low: int, high: int) -> list[Pending]:
        pending = []
        for b in self._shards.inside(low, high):
            (start, stop), piece = self._shards.buckets[b], self._pieces[b]
            into[piece.start - low : piece.stop - low] = self._shard[piece.at : piece.end]
            pending.append(self._group.allgather_start(into[start - low : stop - low], self._shards.counts[b], stage=self._stage))
        return pending

    def _cut(self, layer: int) -> dict[str, Any]:
        """Views by short name of the arrays that the layer arrives in."""
        out = {}
        for key, span in self._map.weight_spans[layer].items():
            apart = (span.start, span.stop) == self._apart
            array, low = (self._shared, span.start) if apart else (self._slots[layer % SLOTS], self._units[layer][0])
            out[key] = array[span.start - low : span.stop - low].reshape(span.shape)
        return out
