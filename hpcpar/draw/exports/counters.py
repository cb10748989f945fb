"""What a rank holds and has on its way over time, as counters: a value from each time on, until the next.

sends, receives, collectives   |==|  |=====|
                                   |=====|
messages on the way            1  2 1  2 1 0
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcpar.draw.exports.lanes import times
from hpcpar.trace.schema import Kind

ON_THE_WAY = "messages on the way"


def counters(events: np.ndarray, memory: np.ndarray) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """(name, unit, times (n,) in ns, values (n,)) of each counter of a rank: memory by kind in bytes, messages on the way.

    A counter without samples is none; nothing is known before its first.
    """
    for kind in np.unique(memory["kind"]):
        samples = memory[memory["kind"] == kind]
        samples = samples[np.argsort(samples["time"], kind="stable")]
        yield f"memory {kind.decode()}", "bytes", samples["time"], samples["bytes"]
    start, end = times(events[np.isin(events["kind"], (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE))])
    at = np.unique(np.concatenate([start, end]))
    if len(at):
        began = np.searchsorted(np.sort(start), at, side="right")
        yield ON_THE_WAY, "messages", at, began - np.searchsorted(np.sort(end), at, side="right")
