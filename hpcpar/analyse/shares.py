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
from hpcpar.analyse.step_time import StepTime
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
    time = StepTime(found.windows[found.measured])
    return [{"rank": rank, **within(training(trace.events(rank)), time, time.total)} for rank in trace.present] if time.total else []


def within(events: np.ndarray, time: StepTime, total: int) -> dict[str, float]:
    """What a rank did within the windows of `time`, as shares of `total` ns; `idle` is what is left of that."""
    kind, whole = np.ascontiguousarray(events["kind"]), spans.of(events)
    inside = time.at(whole)  # the time between windows takes none, so that lengths are those within them
    waits = np.flatnonzero(kind == Kind.WAIT)
    messages = events["peer"][waits] >= 0  # a collective has no peer
    copies = np.isin(events["operation"][waits], (Operation.TO_DEVICE, Operation.TO_HOST))
    calls = np.flatnonzero((kind == Kind.SEND) | (kind == Kind.RECEIVE) | (kind == Kind.COLLECTIVE))
    serial = whole[np.isin(kind, (*ORDER.values(), Kind.WAIT))]
    calls = calls[~spans.touches(whole[calls], serial)]  # blocking
    collectives = kind[calls] == Kind.COLLECTIVE
    layers = {
        "wait_messages": waits[messages],
        "wait_copies": waits[copies],
        "wait_collectives": waits[~messages & ~copies],
        **{name: np.flatnonzero(kind == k) for name, k in ORDER.items()},
        "collective": calls[collectives],
        "send_receive": calls[~collectives],
        "copy": np.flatnonzero(kind == Kind.COPY),
        "io": np.flatnonzero(kind == Kind.IO),
    }
    out, covered, so_far = {}, spans.EMPTY, 0
    for name, rows in layers.items():
        covered = spans.union(covered, inside[rows]) if len(rows) else covered
        reached = int((covered[:, 1] - covered[:, 0]).sum()) if len(rows) else so_far
        out[name] = (reached - so_far) / total
        so_far = reached
    out["wait"] = out["wait_messages"] + out["wait_collectives"] + out["wait_copies"]
    out["compute"] = sum(out[name] for name in COMPUTE)
    out["idle"] = (total - so_far) / total
    return out
