"""Data parallelism, bulk synchronous: gradients summed over the replicas of a stage, a bucket at a time, while the backward goes on.

    flat gradients  | b3 |  bucket 2  |  bucket 1  | b0 |        the backward fills them from the end
                                                   <----         a full bucket leaves at once

The first one is small, so that the sums start early, and so is the last, whose sum no backward hides. Buckets are slices of the flat array
that gradients live in: nothing is copied.
"""

from __future__ import annotations

from typing import Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.forms.data import plan_groups
from hpcpar.nn.parameters import FlatMap


class Buckets:
    """The buckets of one stage's gradients; `ready` takes finished spans, `finish` waits for all sums.

    `within` is the range of the flat array that `group` sums; None stands for all of it.
    """

    def __init__(
        self,
        at: FlatMap,
        flat: Any,
        group: Group,
        stage: int,
        bucket_mb: float,
        first_mb: float,
        algorithm: str,
        within: tuple[int, int] | None = None,
    ):
        self._flat, self._group, self._stage, self._algorithm = flat, group, stage, algorithm
        low, high = within or (0, at.size)
        spans = [(s.start, s.stop) for s in at.names.values() if low <= s.start < high]
        groups = [s for s in spans if s[0] >= at.border], [s for s in spans if s[0] < at.border]
        self.buckets = plan_groups(groups, flat.itemsize, bucket_mb * 1e6, first_mb * 1e6)
        self._missing: list[int] = []
        self._next = 0
        self._pending: list[Pending] = []
        self.begin()

    def begin(self) -> None:
        """Start a step."""
        self._missing = [stop - start for start, stop in self.buckets]
        self._next = 0

    def ready(self, start: int, stop: int) -> None:
        """The gradients of [start, stop) are complete on this rank; full buckets leave, in one order on all ranks."""
        for i, (low, high) in enumerate(self.buckets):
            self._missing[i] -= max(0, min(stop, high) - max(start, low))
        while self._next < len(self.buckets) and self._missing[self._next] == 0:
            self._depart(self._next)
            self._next += 1

    def _depart(self, bucket: int) -> None:
        self._pending.append(self.leave(bucket))

    def start(self) -> None:
        """All gradients are complete on this rank: what has not left leaves."""
        if self._next < len(self.buckets):
            self.ready(0, self.buckets[0][1])

    def leave(self, bucket: int) -> Pending:
        """Start the sum of one bucket."""
        low, high = self.buckets[bucket]
        return self._group.allreduce_start(self._flat[low:high], "sum", "allreduce", self._algorithm, stage=self._stage)

    def finish(self) -> None:
        """Wait until every bucket is summed; raises if one was never filled."""
        if self._next != len(self.buckets):
            raise RuntimeError(f"bucket {self._next} of stage {self._stage} lacks {self._missing[self._next]} gradients")
        for pending in self._pending:
            pending.wait()
        self._pending.clear()
