"""Which receive got which send: MPI's own rule, so that nothing needs an identifier that travels.

    rank 0   S1 ---- S2 ------- S3          of one source, destination and channel, messages are matched in the order in which
    rank 1       R1 ------ R2 ---- R3       they were posted: the k-th send with the k-th receive ("non-overtaking")

A channel is an operation on an axis, for activations and gradients also a border between stages and a microbatch. Each start of a run
counts for itself. One-sided pushes and pulls have one event, on the rank that made them, and nothing to match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcpar.trace.schema import Axis, Kind, Operation

ONE_SIDED = (Operation.PUSH, Operation.PULL, Operation.CLOCK, Operation.BARRIER)  # BARRIER: of clocks that are read until all are done
# No rank leaves before all have come: each result needs all ranks' parts.
MEETINGS = (
    Operation.ALLREDUCE,
    Operation.LOSS,
    Operation.NORM,
    Operation.BARRIER,
    Operation.ALLGATHER,
    Operation.REDUCE_SCATTER,
    Operation.ALLTOALL,
    Operation.CLOCK_POINT,
)
AT_ONCE = 250_000  # sends
MESSAGE = np.dtype(
    [
        ("source", "i4"),
        ("destination", "i4"),
        ("send", "i8"),  # row in the source's events
        ("receive", "i8"),  # row in the destination's events
        ("operation", "u1"),
        ("axis", "u1"),
        ("stage", "i2"),  # of the sender's event, as the next two
        ("microbatch", "i4"),
        ("step", "i4"),
        ("bytes", "i8"),
        ("sent", "i8"),  # posted
        ("left", "i8"),
        ("posted", "i8"),
        ("received", "i8"),
        ("session", "i2"),
    ]
)
END = np.dtype([("rank", "i4"), ("peer", "i4"), ("row", "i8"), ("operation", "u1"), ("axis", "u1"), ("border", "i2"), ("stage", "i2"),
                ("microbatch", "i4"), ("step", "i4"), ("bytes", "i8"), ("start", "i8"), ("end", "i8"), ("session", "i2")])  # fmt: skip
MEETING = np.dtype([("rank", "i4"), ("operation", "u1"), ("bytes", "i8"), ("start", "i8"), ("end", "i8"), ("session", "i2")])


@dataclass(frozen=True)
class Ends:
    """What one rank posted: sends (n,) END and receives (m,) END in the order of their posts, meetings of the world (k,) MEETING."""

    rank: int
    sends: np.ndarray
    receives: np.ndarray
    meetings: np.ndarray


@dataclass(frozen=True)
class Messages:
    """The pairs (n,) MESSAGE; `alone` counts ends without a partner, and partners of unequal bytes."""

    pairs: np.ndarray
    alone: dict[str, int]


def ends_of(rank: int, events: np.ndarray, sessions: list[tuple[int, int]]) -> Ends:
    """The ends of messages and the meetings among the events (n,) EVENT of a rank; `sessions` are the (first row, end) of each start."""
    session = np.zeros(len(events), np.int16)
    for number, (first, stop) in enumerate(sessions):
        session[first:stop] = number - len(sessions)  # from the last one, which all ranks have: a file that was lost began anew
    two_sided = (events["peer"] >= 0) & (events["peer"] != rank) & ~np.isin(events["operation"], ONE_SIDED)
    found = {}
    for kind in (Kind.SEND, Kind.RECEIVE):
        rows = np.flatnonzero((events["kind"] == kind) & two_sided)
        rows = rows[np.argsort(events["start"][rows], kind="stable")]  # as posted; events are in order of completion
        mine = events[rows]
        out = np.empty(len(rows), END)
        out["rank"], out["row"], out["session"] = rank, rows, session[rows]
        for name in ("peer", "operation", "axis", "stage", "microbatch", "step", "bytes", "start", "end"):
            out[name] = mine[name]
        out["border"] = _border(mine, kind)
        found[kind] = out
    rows = np.flatnonzero((events["kind"] == Kind.COLLECTIVE) & (events["axis"] == Axis.WORLD) & np.isin(events["operation"], MEETINGS))
    rows = rows[(events["bytes"][rows] > 0) | np.isin(events["operation"][rows], (Operation.BARRIER, Operation.CLOCK_POINT))]
    meetings = np.empty(len(rows), MEETING)
    meetings["rank"], meetings["session"] = rank, session[rows]
    for name in ("operation", "bytes", "start", "end"):
        meetings[name] = events[name][rows]
    return Ends(rank, found[Kind.SEND], found[Kind.RECEIVE], meetings)


def _border(events: np.ndarray, kind: Kind) -> np.ndarray:
    """The border behind which stage a message crosses, from the stage that posted it; -1 for a channel that has none."""
    up = events["operation"] == Operation.ACTIVATION
    down = events["operation"] == Operation.GRADIENT
    before = up if kind == Kind.RECEIVE else down  # these bear the number of the stage behind the border
    return np.where((up | down) & (events["stage"] >= 0), events["stage"] - before, -1)


def matched(ends: Sequence[Ends]) -> Messages:
    """Match the sends and receives of all ranks, those of a few sources at a time: all at once take gigabytes."""
    pairs, alone, at = [np.empty(0, MESSAGE)], {"sends": 0, "receives": 0, "sizes": 0}, 0
    while at < len(ends):
        stop, some = at, 0
        while stop < len(ends) and (stop == at or some + len(ends[stop].sends) <= AT_ONCE):
            some += len(ends[stop].sends)
            stop += 1
        sends = np.concatenate([e.sends for e in ends[at:stop]])
        sources = [e.rank for e in ends[at:stop]]
        receives = np.concatenate([e.receives[np.isin(e.receives["peer"], sources)] for e in ends])
        s, r = _match(sends, receives)
        same = s["bytes"] == r["bytes"]
        pairs.append(_pairs(s[same], r[same]))
        alone["sends"] += len(sends) - len(s)
        alone["receives"] -= len(s)
        alone["sizes"] += int((~same).sum())
        at = stop
    alone["receives"] += sum(len(e.receives) for e in ends)
    return Messages(np.concatenate(pairs), alone)


def _match(sends: np.ndarray, receives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sends (n,) and receives (m,) END -> those that belong together, (k,) each."""
    n = len(sends)
    both = np.concatenate([sends, receives])
    late = np.arange(len(both)) >= n
    source, destination = (np.where(late, both[a], both[b]) for a, b in (("peer", "rank"), ("rank", "peer")))
    pair = (both["session"].astype(np.int64) << 48) | (source.astype(np.int64) << 24) | destination
    channel = (both["operation"].astype(np.int64) << 56) | (both["axis"].astype(np.int64) << 48)
    channel |= ((both["border"].astype(np.int64) & 0xFFFF) << 32) | (both["microbatch"].astype(np.int64) & 0xFFFFFFFF)
    order = np.lexsort((channel, pair))  # of one channel: its sends as posted, then its receives as posted, as they stand in `both`
    pair, channel, late = pair[order], channel[order], late[order]
    fresh = np.append(True, (pair[1:] != pair[:-1]) | (channel[1:] != channel[:-1]))[: len(order)]
    group, first = np.cumsum(fresh) - 1, np.flatnonzero(fresh)
    sent = np.bincount(group, ~late, len(first)).astype(np.int64)
    came = np.bincount(group, late, len(first)).astype(np.int64)
    place = np.arange(len(order)) - first[group]
    chosen = np.flatnonzero(~late & (place < came[group]))
    return both[order[chosen]], both[order[chosen + sent[group[chosen]]]]


def _pairs(s: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Sends (n,) END and their receives as (n,) MESSAGE."""
    out = np.empty(len(s), MESSAGE)
    for name in ("operation", "axis", "stage", "microbatch", "step", "bytes", "session"):
        out[name] = s[name]
    out["source"], out["destination"], out["send"], out["receive"] = s["rank"], r["rank"], s["row"], r["row"]
    out["sent"], out["left"], out["posted"], out["received"] = s["start"], s["end"], r["start"], r["end"]
    return out
