"""Lengths of sets of time spans: integers in ns, so that every sum is exact.

union     |----|   |--|        a set is (n, 2): start and end of each span, in any order, overlapping or not
             |---|
length    what the set covers, each instant once
"""

from __future__ import annotations

import numpy as np


def of(events: np.ndarray, *kinds: int) -> np.ndarray:
    """The spans (n, 2) of the events of the given kinds; of all events without any."""
    chosen = events[np.isin(events["kind"], kinds)] if kinds else events
    return np.stack([chosen["start"], np.maximum(chosen["start"], chosen["end"])], axis=1)


def union(*sets: np.ndarray) -> np.ndarray:
    """The sets together as disjoint spans in ascending order (n, 2)."""
    spans = np.concatenate(sets)
    spans = spans[spans[:, 0] < spans[:, 1]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.concatenate([[True], spans[1:, 0] > reached[:-1]]))
    last = np.append(first[1:] - 1, len(spans) - 1)
    return np.stack([spans[first, 0], reached[last]], axis=1)


def length(*sets: np.ndarray) -> int:
    """The time that the sets cover together, each instant once, in ns."""
    together = union(*sets)
    return int((together[:, 1] - together[:, 0]).sum())


def common(a: np.ndarray, b: np.ndarray) -> int:
    """The time that both sets cover, in ns: |a| + |b| - |a and b together|."""
    return length(a) + length(b) - length(a, b)


def touches(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which spans of a (n, 2) share some time with the set b: (n,) bool."""
    together = union(b)
    if not len(together):
        return np.zeros(len(a), bool)
    after = np.searchsorted(together[:, 1], a[:, 0], side="right")  # the first span of b that ends behind the start
    there = after < len(together)
    return there & (together[np.minimum(after, len(together) - 1), 0] < a[:, 1])


EMPTY = np.empty((0, 2), np.int64)
