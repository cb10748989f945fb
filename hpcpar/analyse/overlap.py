"""How much of the communication, and of the copies between host and device, is hidden behind compute.

collective   |=========|          hidden = 6 of 9: while the rank computed; the rest it waited or stood idle
compute    |------|  |----|
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.steps import Steps, training
from hpcpar.trace import Trace
from hpcpar.trace.schema import COMPUTE, Kind

CHANNELS = {"collective": (Kind.COLLECTIVE,), "send_receive": (Kind.SEND, Kind.RECEIVE), "copy": (Kind.COPY,)}


def overlap(trace: Trace, found: Steps) -> list[dict[str, Any]]:
    """For each readable rank and channel `<channel>_s`, the time a step in which one was under way, and `<channel>_hidden`, its share under
    compute (None without any).

    A wait inside a compute event is not compute.
    """
    measured = found.numbers[found.measured]
    out = []
    for rank in trace.present if len(measured) else ():
        events = training(trace.events(rank))
        events = events[np.isin(events["step"], measured)]
        waits = spans.union(spans.of(events, Kind.WAIT))
        serial = spans.union(spans.of(events, *COMPUTE), waits)
        computed = spans.length(serial) - spans.length(waits)
        row: dict[str, Any] = {"rank": rank}
        for channel, kinds in CHANNELS.items():
            calls = spans.union(spans.of(events, *kinds))
            under = spans.length(calls)
            hidden = computed - spans.length(calls, serial) + spans.length(calls, waits) if under else 0  # |c & serial| - |c & waits|
            row[f"{channel}_s"] = under / len(measured) / 1e9
            row[f"{channel}_hidden"] = hidden / under if under else None
        out.append(row)
    return out
