"""Traces for the exports: random ones that keep to what the schema says of events, and what is expected of their slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import hpcpar.trace
from hpcpar.trace import Trace
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

RANKS = 3
spans = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))
some = st.integers(-1, 2)
kinds = st.sampled_from([k for k in Kind if k not in (Kind.SEND, Kind.RECEIVE)])
plain = st.tuples(kinds, spans, some, some, st.sampled_from(list(Operation)))
# source, how much further the destination is, sent and left, posted and received, operation, bytes; received after it was sent
ways = st.sampled_from([Operation.ACTIVATION, Operation.GRADIENT])
both = st.tuples(spans, spans).map(lambda s: (s[0], (s[1][0], max(s[1][1], s[0][0] + 1))))
messages = st.tuples(st.integers(0, RANKS - 1), st.integers(1, RANKS - 1), both, ways, st.integers(0, 99))
traces = st.tuples(st.lists(st.lists(plain, max_size=12), min_size=RANKS, max_size=RANKS), st.lists(messages, max_size=8))

# Of no length at all, at one time; slices that begin together, and one that ends where another begins.
HARD = (
    [
        [
            (Kind.COLLECTIVE, (4, 4), 0, 0, Operation.ALLREDUCE),
            (Kind.B, (4, 9), 0, 0, Operation.NONE),
            (Kind.W, (4, 6), 0, 0, Operation.NONE),
        ],
        [(Kind.WAIT, (2, 4), 0, 0, Operation.NONE), (Kind.F, (4, 4), 0, 0, Operation.NONE)],
        [],
    ],
    [(0, 1, ((4, 4), (4, 5)), Operation.ACTIVATION, 0), (0, 1, ((4, 9), (5, 5)), Operation.ACTIVATION, 3)],
)


def write(folder: Path, drawn: Any) -> Trace:
    """The trace of what `traces` drew: spans of calls, copies and collectives overlap in every way, and so do messages."""
    calls, sent = drawn
    records: list[list[tuple[Any, ...]]] = [[] for _ in range(RANKS)]
    for rank, events in enumerate(calls):
        for kind, (start, end), stage, microbatch, operation in events:
            records[rank].append((kind, start, end, stage, microbatch, -1, operation, Axis.DP, -1, 8))
    for number, (source, further, (send, receive), operation, size) in enumerate(sent):
        to = (source + further) % RANKS
        ahead = operation == Operation.ACTIVATION  # from stage 0 to 1; a gradient comes from 1 to 0
        records[source].append((Kind.SEND, *send, int(not ahead), number, -1, operation, Axis.PP, to, size))
        records[to].append((Kind.RECEIVE, *receive, int(ahead), number, -1, operation, Axis.PP, source, size))
    for rank, rows in enumerate(records):
        with Writer(folder, rank, RANKS, {}) as writer:
            for row in sorted(rows, key=lambda r: r[2]):
                writer.record(row[0], 1000 * row[1] + 7, 1000 * row[2] + 7, *row[3:])
            for time in (3000, 90000):
                writer.memory("stash", time + rank, time)
    write_index(folder, RANKS, {})
    return hpcpar.trace.open(folder)


def expected(trace: Trace, first: int) -> list[tuple[Any, ...]]:
    """(process, kind, start, end, microbatch, sequence) of each event, sorted."""
    out = []
    for rank in trace.present:
        for e in trace.events(rank):
            start, end = int(e["start"]) - first, int(max(e["start"], e["end"])) - first
            out.append((f"rank {rank}", Kind(e["kind"]).name.lower(), start, end, int(e["microbatch"]), int(e["sequence"])))
    return sorted(out)


def found(slices: list[Any]) -> list[tuple[Any, ...]]:
    """The same of slices that were read back."""
    facts = [(s.process.partition(" on ")[0], s.args["kind"].lower(), s.start, s.end) for s in slices]
    return sorted((*f, s.args.get("microbatch", -1), s.args["sequence"]) for f, s in zip(facts, slices, strict=True))


def first_of(trace: Trace) -> int:
    """When the run began: its first event or memory sample, in ns."""
    both = [(trace.events(r)["start"], trace.memory(r)["time"]) for r in trace.present]
    return min((int(t.min()) for pair in both for t in pair if len(t)), default=0)


def arrows(drawn: Any) -> list[tuple[int, int, int]]:
    """(source, destination, microbatch) of the messages, sorted."""
    return sorted((source, (source + further) % RANKS, number) for number, (source, further, *_) in enumerate(drawn[1]))


def on_the_way(events: np.ndarray, time: int) -> int:
    """How many messages of a rank are on their way at a time (ns)."""
    mine = events[np.isin(events["kind"], (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE))]
    return int(((mine["start"] <= time) & (time < np.maximum(mine["start"], mine["end"]))).sum())
