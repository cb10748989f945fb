"""The communication of a rank, a row a call: when it was posted, when the rank stood still for it, and from when on it was needed.

    RECEIVE   |------------------------|            post = its start
    WAIT               |+++++++++++++++|            the wait of the same operation, partner, stage and microbatch that ends with it
    F                                  |=====       needed = the end of the wait; without one, the start of the compute that uses it

A call during which the rank neither computed nor waited is blocking: it is a wait of its own length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hpcpar.analyse import spans
from hpcpar.trace.schema import COMPUTE, PIPELINE, Kind, Operation

# Times in ns; a call without a wait has wait_end = wait_start = needed.
CALL = np.dtype(
    [
        ("rank", "i4"),
        ("session", "i2"),
        ("kind", "u1"),
        ("operation", "u1"),
        ("axis", "u1"),
        ("stage", "i2"),
        ("microbatch", "i4"),
        ("peer", "i4"),
        ("bytes", "i8"),
        ("start", "i8"),
        ("end", "i8"),
        ("wait_start", "i8"),
        ("wait_end", "i8"),
        ("needed", "i8"),
    ]
)
KINDS = (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)
COPIES = (Operation.TO_DEVICE, Operation.TO_HOST)
SAME = ("operation", "axis", "peer", "stage", "microbatch", "bytes")  # what a wait has in common with its call
SUMS = (Operation.ALLREDUCE, Operation.REDUCE_SCATTER, Operation.SHARED)


def calls(events: np.ndarray, rank: int, session: np.ndarray | int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The calls (n,) CALL of a rank's events, ascending in `start`, and the spans (k, 2) of the waits that belong to none of them.

    `session` is that of each event; waits for copies are left out.
    """
    chosen = np.flatnonzero(np.isin(events["kind"], KINDS))
    chosen = chosen[np.argsort(events["start"][chosen], kind="stable")]
    out = np.empty(len(chosen), CALL)
    for field in ("kind", "operation", "axis", "stage", "microbatch", "peer", "bytes", "start", "end"):
        out[field] = events[field][chosen]
    out["rank"], out["session"] = rank, session[chosen] if isinstance(session, np.ndarray) else session
    out["end"] = np.maximum(out["start"], out["end"])
    waits = events[(events["kind"] == Kind.WAIT) & ~np.isin(events["operation"], COPIES)]
    alone, waited = np.ones(len(waits), bool), np.zeros(len(out), bool)
    for kinds in ((Kind.RECEIVE, Kind.COLLECTIVE), (Kind.SEND,)):  # a wait during which both ended was for what came in
        left, of = np.flatnonzero(alone), np.flatnonzero(np.isin(out["kind"], kinds))
        found = latest(waits[left], out[of], SAME)
        there = found >= 0
        there[there] &= out["end"][of[found[there]]] > waits["start"][left[there]]
        row = of[found[there]]
        out["wait_start"][row], out["wait_end"][row] = waits["start"][left[there]], waits["end"][left[there]]
        waited[row], alone[left[there]] = True, False
    blocking = ~spans.touches(spans.of(out), spans.of(events, *COMPUTE, Kind.WAIT)) & ~waited
    out["wait_start"][blocking], out["wait_end"][blocking] = out["start"][blocking], out["end"][blocking]
    waited |= blocking
    out["needed"] = np.where(waited, out["wait_end"], _used(out, events))
    for field in ("wait_start", "wait_end"):
        out[field][~waited] = out["needed"][~waited]
    return out, spans.of(waits[alone])


def _used(out: np.ndarray, events: np.ndarray) -> np.ndarray:
    """When a call's result is needed: what it brings by the compute of its stage and microbatch, a sum of gradients by the update."""
    needed = out["end"].copy()
    for rows, users, same in (
        ((out["kind"] == Kind.RECEIVE) & (out["microbatch"] >= 0), PIPELINE, ("stage", "microbatch")),
        ((out["kind"] == Kind.COLLECTIVE) & np.isin(out["operation"], SUMS) & (out["stage"] >= 0), (Kind.UPDATE,), ("stage",)),
    ):
        at = np.flatnonzero(rows)
        compute = events[np.isin(events["kind"], users)]
        found = latest(out[at], compute, same, following=True)
        needed[at[found >= 0]] = compute["start"][found[found >= 0]]
    return needed


def latest(rows: np.ndarray, of: np.ndarray, same: Sequence[str], following: bool = False) -> np.ndarray:
    """For each row the index of the last of `of`, with the same fields, that ends no later than the row; -1 without one.

    `following`: the first of `of` that starts no earlier than the row ends.
    """
    n, m = len(rows), len(of)
    if not n or not m:
        return np.full(n, -1)
    key = pack([np.concatenate([rows[f], of[f]]).astype(np.int64) for f in same])
    time = np.concatenate([rows["end"], of["start" if following else "end"]])
    if following:
        time = -time
    order = np.lexsort((np.arange(n + m) < n, time, key))  # at equal times a candidate stands before a row
    candidate = np.where(order >= n, np.arange(n + m), -1)
    last = np.maximum.accumulate(candidate)
    ok = last >= 0
    ok[ok] &= key[order[last[ok]]] == key[order[ok]]
    out = np.full(n + m, -1)
    out[order[ok]] = order[last[ok]] - n
    return out[:n]


def pack(columns: Iterable[np.ndarray]) -> np.ndarray:
    """One int64, not negative, for each row, equal where all columns are equal."""
    key, size = np.empty(0, np.int64), 1
    for i, column in enumerate(columns):
        if i == 0:
            key = np.zeros(len(column), np.int64)
        if not len(column):
            break
        low, wide = int(column.min()), int(column.max()) - int(column.min()) + 1
        if size * wide >= 1 << 62:
            found, key = np.unique(key, return_inverse=True)
            size = len(found)
        if size * wide >= 1 << 62:
            found, column = np.unique(column, return_inverse=True)
            low, wide = 0, len(found)
        if wide > 1:
            key *= wide
            key += column
            key -= low
            size *= wide
    return key


def grouped(*columns: np.ndarray) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """The distinct rows of the columns, ascending, and which of them each row is (n,)."""
    if not len(columns[0]):
        return [], np.empty(0, np.int64)
    key = pack(columns)
    if key.max() < max(1 << 16, 4 * len(key)):  # a table of all keys costs less than to sort them
        there = np.zeros(int(key.max()) + 1, np.int64)
        there[key] = 1
        values, which = np.flatnonzero(there), (np.cumsum(there) - 1)[key]
    else:
        values, which = np.unique(key, return_inverse=True)
    one = np.empty(len(values), np.int64)
    one[which] = np.arange(len(key))
    return list(zip(*(c[one].tolist() for c in columns), strict=True)), which
