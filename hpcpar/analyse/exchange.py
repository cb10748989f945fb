"""What it costs to send rows to the experts of other ranks and back: its share of the steps, bytes by pair, the slowest pair.

    dispatch    |======|        |==|           share     under way, from post to completion, of the time of the steps
    wait          |====|          ||           waited    the rank stood still for it

Counts, dispatch and combine belong to it, as one all-to-all or as messages. A pair is source of rows and holder of their experts, or back,
whatever way the bytes took. The slowest pair is the one with the longest sum of receives; an all-to-all of the MPI has no times of pairs,
and the pair with the most bytes stands in its place, its `seconds` None.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.steps import Steps, training
from hpcpar.trace import Trace
from hpcpar.trace.schema import Kind, Operation

OPERATIONS = (Operation.COUNTS, Operation.DISPATCH, Operation.COMBINE)
ROWS = (Operation.DISPATCH, Operation.COMBINE)


def exchange(trace: Trace, found: Steps) -> dict[str, Any] | None:
    """`share` and `waited`, means over ranks, `ranks` with a row each, `pairs` with bytes a step, `stays`, the share of bytes that
    crosses no network, and `slowest`; None for a trace without any exchange of experts.
    """
    windows = found.windows[found.measured]
    total, measured = spans.length(windows), found.numbers[found.measured]
    rows, times = [], {}
    for rank in trace.present if total else ():
        events = training(trace.events(rank))
        events = events[np.isin(events["operation"], OPERATIONS)]
        if not len(events):
            continue
        under = spans.of(events, Kind.COLLECTIVE, Kind.SEND, Kind.RECEIVE)
        waits = spans.of(events, Kind.WAIT)
        rows.append({"rank": rank, "share": spans.common(under, windows) / total, "waited": spans.common(waits, windows) / total})
        receives = events[(events["kind"] == Kind.RECEIVE) & np.isin(events["operation"], ROWS) & np.isin(events["step"], measured)]
        for source in np.unique(receives["peer"]).tolist():
            mine = receives[receives["peer"] == source]
            times[source, rank] = int((mine["end"] - mine["start"]).sum()) / 1e9, int(mine["bytes"].sum())
    pairs = _pairs(trace, found)
    if not rows and not pairs:
        return None
    every = sum(p["bytes"] for p in pairs)
    return {
        "share": _mean([r["share"] for r in rows]),
        "waited": _mean([r["waited"] for r in rows]),
        "ranks": rows,
        "pairs": pairs,
        "stays": sum(p["bytes"] for p in pairs if p["source"] == p["destination"]) / every if every else None,
        "slowest": _slowest(times, pairs, len(measured)),
    }


def _pairs(trace: Trace, found: Steps) -> list[dict[str, Any]]:
    """Bytes by source and destination over all steps, the warm-up too: volumes do not depend on speed."""
    sums: dict[tuple[int, int], list[int]] = {}
    for rank in trace.present:
        rows = trace.pairs(rank)
        rows = rows[np.isin(rows["step"], found.numbers)]
        for peer in np.unique(rows["peer"]).tolist():
            mine = rows[rows["peer"] == peer]
            sums[rank, peer] = [int(mine["calls"].sum()), int(mine["bytes"].sum())]
    count = max(1, len(found.numbers))
    return [
        {"source": s, "destination": d, "calls": calls, "bytes": size, "bytes_per_step": size / count}
        for (s, d), (calls, size) in sorted(sums.items())
    ]


def between(trace: Trace, found: Steps, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows `sent` of source, destination, calls, bytes, with those of all-to-alls of experts, which no message of its own shows."""
    both = {(row["source"], row["destination"]): {**row} for row in sent}
    if any(_posted(trace.events(rank)) for rank in trace.present):  # they went as messages, and are among them
        return sent
    for row in _pairs(trace, found):
        if row["source"] != row["destination"]:
            ends = {"source": row["source"], "destination": row["destination"]}
            at = both.setdefault((row["source"], row["destination"]), {**ends, "calls": 0, "bytes": 0})
            at["calls"], at["bytes"] = at["calls"] + row["calls"], at["bytes"] + row["bytes"]
    return [both[ends] for ends in sorted(both)]


def _posted(events: np.ndarray) -> bool:
    return bool(((events["kind"] == Kind.SEND) & np.isin(events["operation"], ROWS)).any())


def _slowest(times: dict[tuple[int, int], tuple[float, int]], pairs: list[dict[str, Any]], steps: int) -> dict[str, Any] | None:
    """source, destination, bytes_per_step, seconds_per_step and bytes_per_s: the last two None where pairs have no times of their own."""
    if times:
        (source, destination), (seconds, size) = max(times.items(), key=lambda x: (x[1], x[0]))
        rate = size / seconds if seconds else None
        return _pair(source, destination, size / steps, seconds / steps, rate)
    far = [p for p in pairs if p["source"] != p["destination"]]
    if not far:
        return None
    most = max(far, key=lambda p: p["bytes"])
    return _pair(most["source"], most["destination"], most["bytes_per_step"], None, None)


def _pair(source: int, destination: int, size: float, seconds: float | None, rate: float | None) -> dict[str, Any]:
    return {
        "source": source,
        "destination": destination,
        "bytes_per_step": size,
        "seconds_per_step": seconds,
        "bytes_per_s": rate,
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
