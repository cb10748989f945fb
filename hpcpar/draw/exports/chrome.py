"""A trace as Chrome JSON, for viewers that know nothing newer: a process a rank, a thread a lane, arrows, counters.

    {"ph": "X", "name": "2F5", "ts": 12.5, "dur": 3.0, ...}      a slice; us since the run's first event, to the ns
    {"ph": "s"} {"ph": "f", "bp": "e"}                            an arrow: in the send, in the receive
    {"ph": "C"}                                                   a counter
    {"ph": "M"}                                                   names and order of processes and threads

Slices of one thread nest or are disjoint. Trace Event Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcpar.draw.exports.arrows import Arrowed, Arrows
from hpcpar.draw.exports.counters import counters
from hpcpar.draw.exports.lanes import lanes, times
from hpcpar.draw.exports.perfetto import origin
from hpcpar.draw.exports.slices import UNDER_WAY, arguments, category, fields, name, process
from hpcpar.draw.exports.whole_file import whole_file
from hpcpar.trace import Trace

THREADS = 1 << 17  # threads are numbered lane * THREADS + rank: apart from each other and from the processes


def save(trace: Trace, path: str | Path) -> str:
    """Write every readable rank to `path`, compressed where it ends in .gz; returns what was done.

    Raises PlanError for a file that cannot be written.
    """
    arrows, count = Arrowed(trace), 0
    compressed = str(path).endswith(".gz")
    with whole_file(path) as fresh, gzip.open(fresh, "wt", 3) if compressed else open(fresh, "w") as file:
        missing = {f"rank {rank}": why for rank, why in trace.missing.items()}
        file.write('{"displayTimeUnit": "ns", "otherData": ' + json.dumps({"missing": missing}) + ', "traceEvents": [\n')
        first, comma = origin(trace), ""
        for rank in trace.present:
            count += len(trace.events(rank))
            for entry in _entries(trace, rank, arrows.of(rank), first):
                file.write(comma + json.dumps(entry))
                comma = ",\n"
        file.write("\n]}\n")
    return f"{count} events of {len(trace.present)} ranks are in {path}; {arrows.said}"


def _entries(trace: Trace, rank: int, arrows: Arrows, first: int) -> Iterator[dict[str, Any]]:
    events, pid = trace.events(rank), rank + 1  # 0 is the idle process

    def us(time: int) -> float:
        return (int(time) - first) / 1000

    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process(trace.description, rank)}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": rank}}
    for number, lane in enumerate(lanes(events), 1):
        place = {"pid": pid, "tid": number * THREADS + rank}
        yield {"ph": "M", **place, "name": "thread_name", "args": {"name": lane.name}}
        yield {"ph": "M", **place, "name": "thread_sort_index", "args": {"sort_index": number}}
        start, end = (t.tolist() for t in times(events[lane.rows]))
        for row, s, e, values in zip(lane.rows.tolist(), start, end, fields(events[lane.rows]), strict=True):
            group = category(values["kind"])
            slice_ = {"ph": "X", **place, "ts": us(s), "dur": (e - s) / 1000, "cat": group, "name": name(values), "args": arguments(values)}
            yield slice_
            if row in arrows.out:
                yield {"ph": "s", **place, "ts": us(s), "cat": "message", "name": "message", "id": arrows.out[row]}
            if row in arrows.into:
                arrow, sent = arrows.into[row]
                if sent > s:
                    yield {"ph": "X", **place, "ts": us(sent), "dur": (e - sent) / 1000, "cat": UNDER_WAY, "name": UNDER_WAY}
                yield {"ph": "f", "bp": "e", **place, "ts": us(max(s, e - 1)), "cat": "message", "name": "message", "id": arrow}
    for called, unit, at, held in counters(events, trace.memory(rank)):
        for time, value in zip(at.tolist(), held.tolist(), strict=True):
            yield {"ph": "C", "pid": pid, "ts": us(time), "name": called, "args": {unit: value}}
