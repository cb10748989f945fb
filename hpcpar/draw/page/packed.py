"""Events as a few compressed columns that a browser unpacks, so that a page of a million events stays under 20 MB.

    events of a rank  ->  tracks: receives | compute and waits | collectives | sends        each sorted by start
    start             ->  difference to the one before in its track, in units of `quantum` ns: small numbers
    column            ->  bytes by place (all lowest bytes, then all second bytes, ...)  ->  deflate  ->  base64

Above `most` events, those outside one chosen window are merged: in each track, the events that begin in one of equally long stretches of
time become one, from the first start to the last end, with the kind that lasted longest and the number of events in `count`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcpar.trace.schema import Kind

MOST = 1_200_000  # events that a page holds one by one
TRACKS = {"receives": (Kind.RECEIVE,), "compute": (), "collectives": (Kind.COLLECTIVE,), "sends": (Kind.SEND,)}  # compute: all others
STRETCHES = 400_000  # events that the merged ones become at most
COLUMNS = {
    "start": "u4",
    "duration": "u4",
    "kind": "u1",
    "operation": "u1",
    "axis": "u1",
    "stage": "i2",
    "microbatch": "i4",
    "version": "i4",
    "step": "i4",
    "peer": "i4",
    "bytes": "f8",  # exact up to 2^53
    "count": "u4",
}
ROW = np.dtype([("start", "i8"), ("end", "i8"), *[(n, t) for n, t in COLUMNS.items() if n not in ("start", "duration")]])


def pack(lanes: Mapping[int, np.ndarray], keep: tuple[int, int], most: int = MOST, stretches: int = STRETCHES) -> dict[str, Any]:
    """What the page's script unpacks: columns, tracks and what was merged.

    `lanes` holds the events (n,) EVENT of each rank, `keep` the window (ns) whose events stay one by one if they are at most `most`.
    Times count from `origin`, the first start of all; nothing is merged where there are no more than `most` events.
    """
    total = sum(len(events) for events in lanes.values())
    origin = min((int(e["start"].min()) for e in lanes.values() if len(e)), default=0)
    last = max((int(e["end"].max()) for e in lanes.values() if len(e)), default=0)
    inside = sum(int(np.count_nonzero(_within(events, keep))) for events in lanes.values())
    window = (origin, last + 1) if total <= most else keep if inside <= most else (origin, origin)
    stretch = max(1, -(-(last - origin + 1) * max(1, len(lanes)) * len(TRACKS) // stretches))
    tracks, parts, first = [], [], 0
    for rank in sorted(lanes):
        for track, rows in enumerate(_tracks(lanes[rank])):
            whole = _within(rows, window)
            rows = _rows(rows[whole]) if whole.all() else np.concatenate([_rows(rows[whole]), _merged(rows[~whole], origin, stretch)])
            rows = rows[np.lexsort((-rows["end"], rows["start"]))]  # what lies inside another follows it, and is drawn above it
            tracks.append([rank, track, first, len(rows)])
            first += len(rows)
            parts.append(rows)
    rows = np.concatenate(parts) if parts else np.empty(0, ROW)
    quantum = max(1, -(-(last - origin + 1) // (1 << 32)))
    at = (rows["start"] - origin) // quantum
    steps = np.diff(at, prepend=0)
    starts = [f for _, _, f, n in tracks if n]
    steps[starts] = at[starts]
    columns = {"start": steps, "duration": (rows["end"] - rows["start"]).clip(0) // quantum, **{n: rows[n] for n in list(COLUMNS)[2:]}}
    return {
        "rows": len(rows),
        "events": total,
        "kept": total <= most or 0 < inside <= most,  # whether the events of the window are there one by one
        "stretch": stretch,
        "quantum": quantum,
        "origin": origin,
        "length": last - origin,
        "tracks": tracks,
        "columns": [[name, kind, _column(columns[name].astype(f"<{kind}"))] for name, kind in COLUMNS.items()],
    }


def unpack(packed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The columns again, with starts and durations in ns and starts from `origin`: what the page's script does, for proofs."""
    out = {}
    for name, kind, text in packed["columns"]:
        raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
        width = np.dtype(kind).itemsize
        out[name] = np.ascontiguousarray(raw.reshape(width, -1).T).reshape(-1).view(f"<{kind}")
    start = out["start"].astype(np.int64)
    for _, _, first, count in packed["tracks"]:
        start[first : first + count] = np.cumsum(start[first : first + count])
    return {**out, "start": start * packed["quantum"], "duration": out["duration"].astype(np.int64) * packed["quantum"]}


def _tracks(events: np.ndarray) -> list[np.ndarray]:
    """The events of a rank, a part a track."""
    messages = [kind for kinds in TRACKS.values() for kind in kinds]
    return [events[np.isin(events["kind"], kinds) if kinds else ~np.isin(events["kind"], messages)] for kinds in TRACKS.values()]


def _within(events: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    return (events["end"] > window[0]) & (events["start"] < window[1]) if window[1] > window[0] else np.zeros(len(events), bool)


def _rows(events: np.ndarray) -> np.ndarray:
    out = np.empty(len(events), ROW)
    for name in ROW.names or ():
        out[name] = events[name] if name != "count" else 1
    return out


def _merged(events: np.ndarray, origin: int, stretch: int) -> np.ndarray:
    """One row for the events (n,) of a track that begin in the same stretch of time; its fields are those of the longest one."""
    if not len(events):
        return np.empty(0, ROW)
    cell = (events["start"] - origin) // stretch
    length = events["end"] - events["start"]
    by_kind = np.lexsort((events["kind"], cell))
    events, cell, length = events[by_kind], cell[by_kind], length[by_kind]
    group = np.flatnonzero(np.diff(cell * 256 + events["kind"], prepend=-1))  # of one kind in one cell
    held = np.add.reduceat(length, group)
    order = np.lexsort((held, cell[group]))
    last = np.flatnonzero(np.diff(cell[group][order], append=-1))  # in each cell, the kind that lasted longest
    chosen = events[group[order[last]]]
    cells = np.flatnonzero(np.diff(cell, prepend=-1))
    out = _rows(chosen)
    out["start"], out["end"] = np.minimum.reduceat(events["start"], cells), np.maximum.reduceat(events["end"], cells)
    out["count"] = np.diff(cells, append=len(events))
    several = out["count"] > 1
    for name in ("operation", "axis"):
        out[name][several] = 0
    for name in ("stage", "microbatch", "version", "peer"):
        out[name][several] = -1
    out["bytes"] = np.add.reduceat(events["bytes"].astype(float), cells)
    return out


def _column(values: np.ndarray) -> str:
    by_place = values.view(np.uint8).reshape(len(values), -1).T if len(values) else values.view(np.uint8)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(by_place).tobytes(), 6)).decode()
