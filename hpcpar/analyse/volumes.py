"""What was sent, or copied between host and device: calls and bytes by operation and axis, and by pair of ranks; counted, never inferred.

Every step counts, the warm-up too: volumes do not depend on speed. A collective is one call on each rank that takes part, with the bytes of
that rank's array; a message counts where it is sent, and its receive in a row of its own. What an all-reduce, reduce-scatter or all-gather
of gradients and weights costs is counted as a ring sends it, whatever the MPI does (forms/data.py).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from hpcpar.analyse.steps import Steps, training
from hpcpar.forms.data import RING_PASSES, ring_bytes
from hpcpar.groups import Partners, groups
from hpcpar.trace import Trace
from hpcpar.trace.schema import Axis, Kind, Operation

KINDS = (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE, Kind.COPY)


def volumes(trace: Trace, found: Steps) -> dict[str, Any]:
    """`operations`: rows of kind, operation, axis, calls, bytes, bytes_per_step and, of a collective that a ring can do,
    ring_bytes_per_step: what a readable rank would send on average; `pairs`: rows of source, destination, calls, bytes.
    """
    ring: dict[tuple[int, int, int], Fraction] = {}
    partners = groups(trace.description, trace.ranks)
    operations: dict[tuple[int, int, int], list[int]] = {}
    pairs: dict[tuple[int, int], list[int]] = {}
    for rank in trace.present:
        events = training(trace.events(rank))
        events = events[np.isin(events["kind"], KINDS) & np.isin(events["step"], found.numbers)]
        _add(operations, np.stack([events["kind"], events["operation"], events["axis"]], axis=1), events["bytes"])
        _add_ring(ring, events, rank, partners)
        sends = events[events["kind"] == Kind.SEND]
        _add(pairs, np.stack([np.full(len(sends), rank), sends["peer"]], axis=1), sends["bytes"])
    count = max(1, len(found.numbers))
    weighed = "bytes" not in trace.lacks
    return {
        "operations": [
            {
                "kind": name(Kind, k),
                "operation": name(Operation, o),
                "axis": name(Axis, a),
                "calls": calls,
                "bytes": total if weighed else None,
                "bytes_per_step": total / count if weighed else None,
                "ring_bytes_per_step": float(ring[k, o, a] / (count * len(trace.present))) if weighed and (k, o, a) in ring else None,
            }
            for (k, o, a), (calls, total) in sorted(operations.items())
        ],
        "pairs": [
            {"source": s, "destination": d, "calls": calls, "bytes": total if weighed else None}
            for (s, d), (calls, total) in sorted(pairs.items())
        ],
    }


def _add_ring(into: dict[Any, Fraction], events: np.ndarray, rank: int, partners: Partners) -> None:
    """Add the bytes that a rank would send on a ring, exactly, for each operation that a ring can do among ranks that are known."""
    for operation in RING_PASSES:
        code = Operation[operation.upper()]
        mine = events[(events["kind"] == Kind.COLLECTIVE) & (events["operation"] == code)]
        for axis, stage in distinct(np.stack([mine["axis"], mine["stage"]], axis=1))[0].tolist() if len(mine) else ():
            if among := partners(rank, axis, stage, code):
                total = int(mine["bytes"][(mine["axis"] == axis) & (mine["stage"] == stage)].sum())
                key = (int(Kind.COLLECTIVE), int(code), axis)
                into[key] = into.get(key, Fraction()) + ring_bytes(operation, total, len(among))


def _add(into: dict[Any, list[int]], keys: np.ndarray, sizes: np.ndarray) -> None:
    """Add calls and bytes of events with keys (n, k) to `into`."""
    if not len(keys):
        return
    found, which = distinct(keys)
    calls = np.bincount(which, minlength=len(found))
    total = np.zeros(len(found), np.int64)
    np.add.at(total, which, sizes)
    for key, c, b in zip(map(tuple, found.tolist()), calls.tolist(), total.tolist(), strict=True):
        at = into.setdefault(key, [0, 0])
        at[0] += c
        at[1] += b


def distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of keys (n, k) in ascending order (m, k), and which of them each is (n,); small numbers, as those of a trace."""
    keys = keys.astype(np.int64)
    low = keys.min(axis=0)
    code = np.zeros(len(keys), np.int64)
    for column, width in zip((keys - low).T, (keys.max(axis=0) - low + 1).tolist(), strict=True):
        code = code * width + column
    if code.max() >= max(1 << 16, 4 * len(code)):  # up to that, a table of all codes costs less than to sort them
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return keys[first], which
    there = np.zeros(int(code.max()) + 1, bool)
    there[code] = True
    which = (np.cumsum(there) - 1)[code]
    first = np.empty(int(there.sum()), np.int64)
    first[which] = np.arange(len(code))
    return keys[first], which


def name(enum: Any, value: int) -> str:
    """The name of an enum value in lower case; a number that this version does not know stays one."""
    try:
        return enum(value).name.lower()
    except ValueError:
        return str(value)
