"""Data parallelism as arithmetic: the buckets of a flat gradient array, and what a collective costs on a ring.

    flat gradients  | bucket 3 | bucket 2 | bucket 1 | b0 |        the backward fills them from the end

A collective over N ranks is counted as a ring would send it (Thakur, Rabenseifner, Gropp 2005), whatever the MPI does: each rank sends
(N - 1) / N of the array in a reduce-scatter or an all-gather, twice that in an all-reduce, which is both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

RING_PASSES = {"allreduce": 2, "reduce_scatter": 1, "allgather": 1}  # times that a ring sends (N - 1) / N of the array


def plan_buckets(spans: Sequence[tuple[int, int]], itemsize: int, bucket_bytes: float, first_bytes: float) -> list[tuple[int, int]]:
    """Cut the range of `spans` into buckets along their borders, in the order in which the backward fills them.

    `spans` are the (start, stop) of neighbours, ascending. A bucket closes once it holds its bytes, `first_bytes` for the first; the last
    one, whose sum no backward hides, holds the spans at the start that have as many.
    """
    out: list[tuple[int, int]] = []
    stop, want = spans[-1][1] if spans else 0, first_bytes
    base = spans[0][0] if spans else 0
    tail = next((stop for _, stop in spans if (stop - base) * itemsize >= first_bytes), base)
    for start, _ in reversed(spans):
        if (stop - start) * itemsize >= want or start in (base, tail):
            out.append((start, stop))
            stop, want = start, bucket_bytes
    return out


def plan_groups(
    groups: Iterable[Sequence[tuple[int, int]]], itemsize: int, bucket_bytes: float, first_bytes: float
) -> list[tuple[int, int]]:
    """The buckets of several ranges, in the order in which they are filled; none reaches across the border of two."""
    out: list[tuple[int, int]] = []
    for spans in groups:
        out += plan_buckets(spans, itemsize, bucket_bytes, bucket_bytes if out else first_bytes)
    return out


def ring_bytes(operation: str, array_bytes: int, ranks: int) -> Fraction:
    """Bytes that each of `ranks` ranks sends on a ring; raises KeyError for an operation that is no such collective."""
    return Fraction(RING_PASSES[operation] * array_bytes * (ranks - 1), ranks)
