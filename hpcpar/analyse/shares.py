"""What each rank did with the time of the steps, as shares that sum to 1.

An instant belongs to the first of these that covers it:

    wait        the rank stood still until a message, a collective or a copy was complete, also inside a compute event
    recompute W I B F update         compute
    collective, send_receive         a blocking call: one during which the rank neither computed nor waited
    copy, io                         what is not hidden behind any of these
    idle        nothing of these

A non-blocking send, receive or collective runs beside the rank's own work; its time is in no share but in `overlap`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.steps import Steps, training
from hpcpar.trace import Trace
from hpcpar.trace.schema import Kind, Operation

ORDER = {
    "recompute": Kind.RECOMPUTE,
    "W": Kind.W,
    "I": Kind.I,
    "B": Kind.B,
    "F": Kind.F,
    "update": Kind.UPDATE,
}
COMPUTE = tuple(ORDER)
NAMES = ("F", "I", "W", "B", "recompute", "update", "send_receive", "collective", "wait", "copy", "io", "idle")


def shares(trace: Trace, found: Steps) -> list[dict[str, Any]]:
    """For each readable rank: `rank`, a share for each of NAMES, their sum `compute`, and the three parts of `wait`."""
    windows = found.windows[found.measured]
    total = spans.length(windows)
    return [{"rank": rank, **_of_rank(training(trace.events(rank)), windows, total)} for rank in trace.present] if total else []


def blocking(events: np.ndarray, *kinds: int) -> np.ndarray:
    """The spans of communication calls during which the rank neither computed nor waited."""
    serial = spans.of(events, *ORDER.values(), Kind.WAIT)
    calls = spans.of(events, *kinds)
    return calls[~spans.touches(calls, serial)]


def _of_rank(events: np.ndarray, windows: np.ndarray, total: int) -> dict[str, float]:
    waits = events[events["kind"] == Kind.WAIT]
    messages = waits["peer"] >= 0  # a collective has no peer
    copies = np.isin(waits["operation"], (Operation.TO_DEVICE, Operation.TO_HOST))
    layers = {
        "wait_messages": spans.of(waits[messages]),
        "wait_copies": spans.of(waits[copies]),
        "wait_collectives": spans.of(waits[~messages & ~copies]),
        **{name: spans.of(events, kind) for name, kind in ORDER.items()},
        "collective": blocking(events, Kind.COLLECTIVE),
        "send_receive": blocking(events, Kind.SEND, Kind.RECEIVE),
        "copy": spans.of(events, Kind.COPY),
        "io": spans.of(events, Kind.IO),
    }
    out, covered, so_far = {}, spans.EMPTY, 0
    for name, layer in layers.items():
        covered = spans.union(covered, layer)
        reached = spans.common(covered, windows)
        out[name] = (reached - so_far) / total
        so_far = reached
    out["wait"] = out["wait_messages"] + out["wait_collectives"] + out["wait_copies"]
    out["compute"] = sum(out[name] for name in COMPUTE)
    out["idle"] = (total - so_far) / total
    return out
