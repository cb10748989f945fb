"""The critical path of the measured steps: shortening what lies on it shortens them; what does not waits for it.

    rank 0   F0====F1====            ====B0      walked back from the last event: a rank's own time up to a wait;
                     \\              /           where another came late, on with that one at the time when it
    rank 1            ====F0====B0===                came; what was in flight is transfer

Bohme, de Supinski, Geimer, Schulz, Wolf 2012, Scalable critical-path based performance analysis. The path covers every instant of the steps
once, so that its parts sum to the runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.exchanges import Exchanges
from hpcpar.analyse.shares import NAMES, within
from hpcpar.analyse.step_time import StepTime
from hpcpar.analyse.steps import training
from hpcpar.trace import Trace
from hpcpar.trace.schema import Kind


def critical_path(trace: Trace, found: Exchanges) -> dict[str, Any] | None:
    """`length_s`, `parts` (shares that sum to 1: those of shares.py, `transfer_messages`, `transfer_collectives`), `ranks` (a row for each
    rank on the path: its share) and `changes` of rank; None without a measured step.
    """
    total = found.time.total
    if not total or not len(found.ranks):
        return None
    stays, moves, changes = _walk(found)
    parts = dict.fromkeys(NAMES, 0.0)
    rows = []
    for i, rank in enumerate(found.ranks):
        if not stays[i]:
            continue
        mine = found.time.cut(spans.union(np.array(stays[i], np.int64)))
        share = spans.length(mine) / total
        if share:
            rows.append({"rank": rank, "share": share})
            did = within(training(trace.events(rank)), StepTime(mine), total)
            did["idle"] -= 1 - share  # what is left of the path is on other ranks
            for name in NAMES:
                parts[name] += did[name]
    for name, flights in moves.items():
        ends = found.time.at(np.array(flights, np.int64).reshape(-1, 2))
        parts[f"transfer_{name}"] = int((ends[:, 1] - ends[:, 0]).sum()) / total
    return {"length_s": total / 1e9, "parts": parts, "ranks": sorted(rows, key=lambda row: -row["share"]), "changes": changes}


def _walk(found: Exchanges) -> tuple[list[list[tuple[int, int]]], dict[str, list[tuple[int, int]]], int]:
    """By rank the spans in which the path is there; those in flight; how often the path changes ranks."""
    index = {rank: i for i, rank in enumerate(found.ranks)}
    waits = [_waits(found, i) for i in range(len(found.ranks))]
    stays: list[list[tuple[int, int]]] = [[] for _ in waits]
    moves: dict[str, list[tuple[int, int]]] = {"messages": [], "collectives": []}
    r = int(np.argmax(found.bounds[:, 1]))
    t, low, changes = int(found.time.windows[-1, 1]), int(found.time.windows[0, 0]), 0
    standing = False  # the last change of ranks took no time
    while t > low:
        start, end, cause, came, kind = waits[r]
        k = int(np.searchsorted(end, t, side="right")) - 1
        if k < 0 or end[k] <= low:
            stays[r].append((low, t))
            break
        stop = int(end[k])
        if stop < t:
            stays[r].append((stop, t))
        on = min(int(came[k]), stop)
        moved, late = ("collectives" if kind[k] == Kind.COLLECTIVE else "messages"), cause[k] >= 0 and came[k] > start[k]
        if cause[k] < 0:
            stays[r].append((int(start[k]), stop))  # a wait, for nobody knows whom
            t = int(start[k])
        elif late and not (standing and on == t):
            moves[moved].append((on, stop))
            standing, t, r, changes = on == t, on, index[int(cause[k])], changes + 1
            continue
        else:
            moves[moved].append((int(start[k]), stop))
            t = int(start[k])
        standing = False
    return stays, moves, changes


def _waits(found: Exchanges, i: int) -> tuple[np.ndarray, ...]:
    """Start, end, cause, when that came, and kind of the waits, disjoint and ascending: of two that overlap, the part behind the first."""
    at = found.of(i)
    calls, alone = found.calls[at], found.alone[i]
    took = calls["wait_end"] > calls["wait_start"]
    chosen, n = calls[took], len(alone)
    start, end = np.concatenate([chosen["wait_start"], alone[:, 0]]), np.concatenate([chosen["wait_end"], alone[:, 1]])
    cause = np.concatenate([found.cause[at][took], np.full(n, -1)])
    came = np.concatenate([found.came[at][took], np.zeros(n, np.int64)])
    kind = np.concatenate([chosen["kind"], np.zeros(n, np.uint8)])
    order = np.lexsort((start, end))
    start, end, cause, came, kind = (x[order] for x in (start, end, cause, came, kind))
    if len(end):
        start[1:] = np.maximum(start[1:], end[:-1])
    kept = end > start
    return start[kept], end[kept], cause[kept], came[kept], kind[kept]
