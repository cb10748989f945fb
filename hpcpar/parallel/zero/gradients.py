"""The gradients of a sharded stage: every bucket is reduce-scattered, so that each owner gets the sum of its piece.

zero 1       | bucket 1 | bucket 0 |    slices of the whole flat array; once a step; the owner's sum stands where the bucket begins
zero 2, 3    slot 0: bucket 0 full, on its way     slot 1: bucket 1, being filled      at every microbatch; no flat array
             shard: the sums so far, added to the owner's part of a bucket before it leaves: the sum over ranks then holds both
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.forms.zero import Shards
from hpcpar.nn.gradients import Gradients, keys_of
from hpcpar.nn.parameters import FlatMap, Span
from hpcpar.ops.update import add_
from hpcpar.parallel.buckets import Buckets
from hpcpar.parallel.zero.cut import SLOTS


class Scattered(Buckets):
    """Buckets of one flat gradient array, each summed to its owners."""

    def __init__(self, shards: Shards, flat: Any, group: Group, stage: int):
        self._flat, self._group, self._stage = flat, group, stage
        self.buckets, self._counts = list(shards.buckets), shards.counts
        self._pending: list[Pending] = []
        self.begin()

    def leave(self, bucket: int) -> Pending:
        """Start the sum of one bucket: this owner's piece of it is then at the bucket's beginning."""
        low, high = self.buckets[bucket]
        return self._group.reduce_scatter_start(self._flat[low:high], None, self._counts[bucket], stage=self._stage)


class Streamed:
    """The gradients of one microbatch at a time, in two slots, and the shard of their sums (elements: shards.size(index)).

    Stands where nn.Gradients and a reducer stand: `add` runs a W and lets full buckets leave.
    """

    ready: Callable[[int, int], None] | None = None
    last = False  # of a step: every microbatch's buckets leave, the last one's too

    def __init__(self, at: FlatMap, shards: Shards, group: Group, stage: int, xp: Any, dtype: str):
        self.map, self.shards, self._group, self._stage = at, shards, group, stage
        self.pieces = shards.pieces(group.index)
        self.shard = xp.zeros(shards.size(group.index), dtype)
        sizes = [high - low for low, high in shards.buckets]
        self._slots = [xp.zeros(max(sizes), dtype) for _ in range(min(SLOTS, len(sizes)))]
        self._second = xp.zeros(at.second.stop - at.second.start, dtype) if at.second else None
        self._free = list(self._slots)
        self._filling: dict[int, Any] = {}  # bucket -> its slot
        self._missing: dict[int, int] = {}
        self._flying: dict[int, tuple[Pending, Any]] = {}  # oldest first
        self._summed: set[int] = set()  # buckets whose shard holds an earlier microbatch of this step

    def begin(self) -> None:
        """Start a step: what the shard holds is overwritten."""
        self._summed.clear()

    def add(self, layer: int, part: str, backward_weight: Callable[..., None], held: Any) -> None:
        """Run one W: the gradient of a part of a layer; a bucket that it fills leaves."""
        spans = self.map.gradient_spans[layer]
        first, second = keys_of(spans, part)
        mine = [spans[key] for key in (first, second) if key in spans]
        views = [self._view(span) for span in mine]
        backward_weight(held, views[0], views[1] if len(views) > 1 else None, False)
        if self._second is not None and self.map.layers[layer].kind == "embedding":
            views[0] += self._second.reshape(views[0].shape)  # the head's use of the tied weight, made before
        for span in sorted(mine, key=lambda span: -span.start):  # the order of the buckets
            if span is not self.map.second:
                self._filled(span)

    def start(self) -> None:
        """D: full buckets have left; raises if one is not full."""
        if self._filling:
            b = next(iter(self._filling))
            raise RuntimeError(f"bucket {b} of stage {self._stage} lacks {self._missing[b]} gradients")

    def finish(self) -> None:
        """Wait until every bucket is summed; raises if one was never filled."""
        self.start()
        while self._flying:
            self._settle(next(iter(self._flying)))
        lost = set(range(len(self.shards.buckets))) - self._summed
        if lost:
            raise RuntimeError(f"buckets {sorted(lost)} of stage {self._stage} were never filled")

    def held_bytes(self) -> dict[str, int]:
        """Bytes by kind: the shard, and what is named beside it."""
        out = {"gradients": self.shard.nbytes, "gradient buckets": sum(s.nbytes for s in self._slots)}
        return out if self._second is None else {**out, "tied gradient": self._second.nbytes}

    def _view(self, span: Span) -> Any:
        if span is self.map.second:
            assert self._second is not None
            return self._second.reshape(span.shape)
        b = self.shards.bucket_at(span.start)
        low = self.shards.buckets[b][0]
        return self._opened(b)[span.start - low : span.stop - low].reshape(span.shape)

    def _opened(self, b: int) -> Any:
        if b not in self._filling:
            if not self._free:
                self._settle(next(iter(self._flying)))
            low, high = self.shards.buckets[b]
            self._filling[b], self._missing[b] = self._free.pop(0), high - low
        return self._filling[b]

    def _filled(self, span: Span) -> None:
        b = self.shards.bucket_at(span.start)
        self._missing[b] -= span.stop - span.start
        if not self._missing[b]:
            self._leave(b)

    def _leave(self, b: int) -> None:
        (low, high), piece = self.shards.buckets[b], self.pieces[b]
        slot, mine = self._filling.pop(b), self.shard[piece.at : piece.end]
        if b in self._flying:
            self._settle(b)
        if b in self._summed:
            add_(slot[piece.start - low : piece.stop - low], mine)
        pending = self._group.reduce_scatter_start(slot[: high - low], mine, self.shards.counts[b], stage=self._stage)
        self._flying[b] = (pending, slot)
        self._summed.add(b)

    def _settle(self, b: int) -> None:
        pending, slot = self._flying.pop(b)
        pending.wait()
        self._free.append(slot)


def summed(gradients: Gradients | Streamed, shards: Shards, owner: int) -> list[Any]:
    """The sums of an owner's pieces, views (n,) in the order of the buckets: in its shard, or where each bucket begins."""
    if isinstance(gradients, Streamed):
        return [gradients.shard[p.at : p.end] for p in gradients.pieces]
    return [gradients.flat[low : low + counts[owner]] for (low, _), counts in zip(shards.buckets, shards.counts, strict=True)]
