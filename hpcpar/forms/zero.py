"""ZeRO as arithmetic (Rajbhandari et al. 2020, arXiv:1910.02054): which elements of a stage's flat array each of N replicas owns.

    flat       | layer 0            | layer 1       |            the backward fills it from the end, bucket by bucket
    buckets    |   3    |     2     |   1   |   0   |
    owners     |0  |1 |2 |0  |1  |2 |0 |1|2 |0 |1|2 |            N = 3: each bucket is cut over all replicas
    shard of 0 |0  |     |0  |      |0 |    |0 |                 its pieces, one behind the other in the order of the buckets

A bucket is reduce-scattered as soon as it is full: its owners get the sums of their pieces. What an owner updates is all-gathered bucket
by bucket. The first owners of a bucket hold one element more where it does not divide. A tied weight is a bucket of its own, so that both
stages that hold it cut it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hpcpar.forms.data import plan_groups
from hpcpar.layout import cut

Span = tuple[int, int]  # [start, stop) of the flat array


class Piece(NamedTuple):
    """The elements start .. stop - 1 of the flat array, which stand from `at` in their owner's shard."""

    start: int
    stop: int
    at: int

    @property
    def end(self) -> int:
        """One more than the last place in the shard."""
        return self.at + self.stop - self.start


@dataclass(frozen=True)
class Shards:
    """The cut of one stage's flat array over N = `owners` replicas.

    `buckets` are in the order in which the backward fills them; counts[b][r] elements of bucket b belong to replica r, in ascending order.
    """

    owners: int
    buckets: tuple[Span, ...]
    counts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, runs: Sequence[Sequence[Span]], tied: Span | None, itemsize: int, bucket_bytes: float, first_bytes: float, owners: int
    ) -> Shards:
        """Cut the spans of `runs`: neighbours in ascending order, in groups that no bucket reaches across; `tied` stands alone."""
        groups = [group for run in reversed(runs) for group in reversed(_apart(run, tied))]
        buckets = plan_groups(groups, itemsize, bucket_bytes, first_bytes)
        pieces = [[cut(high - low, owners, r) for r in range(owners)] for low, high in buckets]
        return cls(owners, tuple(buckets), tuple(tuple(p.stop - p.start for p in of) for of in pieces))

    @property
    def elements(self) -> int:
        """Psi, the elements of the stage."""
        return sum(stop - start for start, stop in self.buckets)

    def size(self, owner: int) -> int:
        """The elements of an owner's shard."""
        return sum(counts[owner] for counts in self.counts)

    def pieces(self, owner: int) -> tuple[Piece, ...]:
        """An owner's pieces, one a bucket; a piece of a bucket that has fewer elements than owners may be empty."""
        return self._pieces[owner]

    @cached_property
    def _pieces(self) -> tuple[tuple[Piece, ...], ...]:
        every = []
        for owner in range(self.owners):
            mine, at = [], 0
            for (low, _), counts in zip(self.buckets, self.counts, strict=True):
                start = low + sum(counts[:owner])
                mine.append(Piece(start, start + counts[owner], at))
                at += counts[owner]
            every.append(tuple(mine))
        return tuple(every)

    def inside(self, low: int, high: int) -> tuple[int, ...]:
        """The numbers of the buckets that lie in [low, high)."""
        return tuple(b for b, (start, stop) in enumerate(self.buckets) if low <= start and stop <= high)

    def bucket_at(self, place: int) -> int:
        """The number of the bucket that an element is in."""
        return next(b for b, (start, stop) in enumerate(self.buckets) if start <= place < stop)


def _apart(run: Sequence[Span], tied: Span | None) -> list[list[Span]]:
    """The spans of a run in ascending groups: the tied one alone, what is before and behind it."""
    i = next((i for i, span in enumerate(run) if span == tied), len(run))
    return [list(group) for group in (run[:i], run[i : i + 1], run[i + 1 :]) if group]


def sent(zero: int, elements: int, microbatches: int) -> dict[str, int]:
    """Elements of the arrays that go through each collective in a step of k = accumulate x microbatches microbatches.

    On a ring that is 2 Psi (zero 0 and 1), (k + 1) Psi (2), 3 k Psi (3), each times (N - 1) / N, sent by each of the N replicas.
    """
    k = microbatches
    return {
        0: {"allreduce": elements},
        1: {"reduce_scatter": elements, "allgather": elements},
        2: {"reduce_scatter": k * elements, "allgather": elements},
        3: {"reduce_scatter": k * elements, "allgather": 2 * k * elements},
    }[zero]
