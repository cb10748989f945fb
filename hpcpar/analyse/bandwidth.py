"""The bandwidth that messages and collectives achieved.

    send            |-----------|
    receive              |==========|       the message: bytes of it / from when both were posted to when the receive was complete
    collective      |----|==========|       bytes of the array / from when its last rank entered to when this rank saw it complete

A rank sees that something is complete when it looks: while it computes, that may be long after the fact, so that the rate over all calls
is a lower bound. `waited` takes only those that a rank stood still for, which it saw at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse.calls import grouped
from hpcpar.analyse.exchanges import Exchanges
from hpcpar.analyse.volumes import name
from hpcpar.trace.schema import Axis, Kind, Operation


def bandwidth(found: Exchanges) -> dict[str, Any]:
    """`operations`: rows of kind, operation, axis; `pairs`: rows of source, destination; each with calls, bytes, seconds, bytes_per_s and,
    of those waited for, waited_calls and waited_bytes_per_s; None where no time is known. What overlaps the measured steps counts.
    """
    calls, time = found.calls, found.time
    chosen = np.flatnonzero((found.cause >= 0) & (calls["kind"] != Kind.SEND) & (calls["bytes"] > 0))
    chosen = chosen[(time.at(calls["end"][chosen]) > 0) & (time.at(calls["start"][chosen]) < time.total)]
    took = np.maximum(calls["end"][chosen] - np.maximum(calls["start"][chosen], found.came[chosen]), 0)
    waited = calls["wait_end"][chosen] > calls["wait_start"][chosen]
    kinds, sizes = calls["kind"][chosen], calls["bytes"][chosen]
    keys = [kinds, calls["operation"][chosen], calls["axis"][chosen]]
    operations = [
        {
            "kind": "message" if k == Kind.RECEIVE else "collective",
            "operation": name(Operation, o),
            "axis": name(Axis, a),
            **row,
        }
        for (k, o, a), row in _rates(keys, sizes, took, waited)
    ]
    message = kinds == Kind.RECEIVE
    ends = [calls[end][chosen[message]] for end in ("peer", "rank")]
    pairs = [{"source": s, "destination": d, **row} for (s, d), row in _rates(ends, sizes[message], took[message], waited[message])]
    return {"operations": operations, "pairs": pairs}


def _rates(keys: list[np.ndarray], sizes: np.ndarray, took: np.ndarray, waited: np.ndarray) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    found, which = grouped(*keys)

    def sums(values: np.ndarray) -> list[float]:
        return np.bincount(which, values, minlength=len(found)).tolist()

    calls, total, seconds = np.bincount(which).tolist(), sums(sizes), sums(took / 1e9)
    seen, part, stood = sums(waited), sums(sizes * waited), sums(took * waited / 1e9)
    return [
        (
            key,
            {
                "calls": calls[i],
                "bytes": int(total[i]),
                "seconds": seconds[i],
                "bytes_per_s": total[i] / seconds[i] if seconds[i] else None,
                "waited_calls": int(seen[i]),
                "waited_bytes_per_s": part[i] / stood[i] if stood[i] else None,
            },
        )
        for i, key in enumerate(found)
    ]
