"""What was sent: calls and bytes by operation and axis, and by pair of ranks; counted, never inferred from times.

Every step counts, the warm-up too: volumes do not depend on speed. A collective is one call on each rank that takes part, with the bytes of
that rank's array; a message counts where it is sent, and its receive in a row of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse.steps import Steps, training
from hpcpar.trace import Trace
from hpcpar.trace.schema import Axis, Kind, Operation

KINDS = (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)


def volumes(trace: Trace, found: Steps) -> dict[str, Any]:
    """`operations`: rows of kind, operation, axis, calls, bytes, bytes_per_step; `pairs`: rows of source, destination, calls, bytes."""
    operations: dict[tuple[int, int, int], list[int]] = {}
    pairs: dict[tuple[int, int], list[int]] = {}
    for rank in trace.present:
        events = training(trace.events(rank))
        events = events[np.isin(events["kind"], KINDS) & np.isin(events["step"], found.numbers)]
        _add(operations, np.stack([events["kind"], events["operation"], events["axis"]], axis=1), events["bytes"])
        sends = events[events["kind"] == Kind.SEND]
        _add(pairs, np.stack([np.full(len(sends), rank), sends["peer"]], axis=1), sends["bytes"])
    count = max(1, len(found.numbers))
    return {
        "operations": [
            {
                "kind": _name(Kind, k),
                "operation": _name(Operation, o),
                "axis": _name(Axis, a),
                "calls": calls,
                "bytes": total,
                "bytes_per_step": total / count,
            }
            for (k, o, a), (calls, total) in sorted(operations.items())
        ],
        "pairs": [{"source": s, "destination": d, "calls": calls, "bytes": total} for (s, d), (calls, total) in sorted(pairs.items())],
    }


def _add(into: dict[Any, list[int]], keys: np.ndarray, sizes: np.ndarray) -> None:
    """Add calls and bytes of events with keys (n, k) to `into`."""
    if not len(keys):
        return
    found, which = np.unique(keys.astype(np.int64), axis=0, return_inverse=True)
    which = which.reshape(-1)
    calls = np.bincount(which, minlength=len(found))
    total = np.zeros(len(found), np.int64)
    np.add.at(total, which, sizes)
    for key, c, b in zip(map(tuple, found.tolist()), calls.tolist(), total.tolist(), strict=True):
        at = into.setdefault(key, [0, 0])
        at[0] += c
        at[1] += b


def _name(enum: Any, value: int) -> str:
    """The name of an enum value in lower case; a number that this version does not know stays one."""
    try:
        return enum(value).name.lower()
    except ValueError:
        return str(value)
