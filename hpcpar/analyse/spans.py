"""Lengths of sets of time spans: integers in ns, so that every sum is exact.

union     |----|   |--|        a set is (n, 2): start and end of each span, in any order, overlapping or not
             |---|
length    what the set covers, each instant once
"""

from __future__ import annotations

import numpy as np


def of(events: np.ndarray, *kinds: int) -> np.ndarray:
    """The spans (n, 2) of the events of the given kinds; of all events without any."""
    if kinds:
        kind = events["kind"]
        rows = np.flatnonzero(kind == kinds[0] if len(kinds) == 1 else np.isin(kind, kinds))
        start, end = events["start"][rows], events["end"][rows]
    else:
        start, end = events["start"], events["end"]
    return np.stack([start, np.maximum(start, end)], axis=1)


def union(*sets: np.ndarray) -> np.ndarray:
    """The sets together as disjoint spans in ascending order (n, 2)."""
    start, end = np.concatenate(sets).T if len(sets) > 1 else sets[0].T
    there = start < end
    start, end = start[there], end[there]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reached[:-1]]))
    last = np.append(first[1:] - 1, len(start) - 1)
    return np.stack([start[first], reached[last]], axis=1)


def length(*sets: np.ndarray) -> int:
    """The time that the sets cover together, each instant once, in ns."""
    together = union(*sets)
    return int((together[:, 1] - together[:, 0]).sum())


def by_group(spans: np.ndarray, group: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """For each group, which of `spans` (n, 2) are in it by `group` (n,): first start and last end (groups, 2), and the time that they
    cover, each instant once, in ns (groups,). Every group has a span.
    """
    order = np.argsort(group, kind="stable")
    spans, group = spans[order], group[order]
    at = np.searchsorted(group, np.arange(groups))
    reach = np.stack([np.minimum.reduceat(spans[:, 0], at), np.maximum.reduceat(spans[:, 1], at)], axis=1)
    lengths = reach[:, 1] - reach[:, 0]
    apart = np.concatenate([[0], np.cumsum(lengths[:-1] + 1)])  # the groups one behind the other, so that no two touch
    together = union(spans + (apart - reach[:, 0])[group][:, None])
    whose = np.searchsorted(apart, together[:, 0], side="right") - 1
    return reach, np.bincount(whose, together[:, 1] - together[:, 0], groups).astype(np.int64)


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
