"""What each rank held, by kind (stash, parameters, gradients, optimizer, device): the most of it, and how it went over the measured steps.

samples   o-----o--o-----------o      a sample holds until the next one of its kind
bins      |  a  |  b  |  b  |  c  |   the most that was held within each, also if the sample is older; None before the first sample
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse.step_time import StepTime
from hpcpar.analyse.steps import Steps
from hpcpar.trace import Trace

BINS = 48


def peaks(trace: Trace) -> list[dict[str, Any]]:
    """For each readable rank: `rank` and the largest sample of each kind that it has, in bytes."""
    out = []
    for rank in trace.present:
        samples = trace.memory(rank)
        kinds, which = np.unique(samples["kind"], return_inverse=True)
        most = np.full(len(kinds), -1, np.int64)
        np.maximum.at(most, which, samples["bytes"])
        out.append({"rank": rank, **{k.decode(): int(b) for k, b in zip(kinds.tolist(), most, strict=True)}})
    return out


def samples(trace: Trace, chosen: tuple[int, int] | None = None) -> dict[str, dict[int, tuple[np.ndarray, np.ndarray]]]:
    """{kind: {rank: (seconds (n,), bytes (n,))}} of all steps, or of the first to the last of the chosen ones; seconds count from the
    first of these samples on any rank."""
    found = {}
    for rank in trace.present:
        rows = trace.memory(rank)
        if chosen is not None:
            rows = rows[(rows["step"] >= chosen[0]) & (rows["step"] <= chosen[1])]
        if len(rows):
            found[rank] = rows[np.argsort(rows["time"], kind="stable")]
    origin = min((int(rows["time"][0]) for rows in found.values()), default=0)
    out: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    for rank, rows in found.items():
        for kind in np.unique(rows["kind"]).tolist():
            mine = rows[rows["kind"] == kind]
            out.setdefault(kind.decode(), {})[rank] = ((mine["time"] - origin) / 1e9, mine["bytes"].copy())
    return dict(sorted(out.items()))


def over_time(trace: Trace, found: Steps, bins: int = BINS) -> dict[str, Any] | None:
    """`times_s` (bins,), the middle of each bin in s of the measured steps, and `kinds`: {kind: {`most` and `mean` (bins,) over the ranks
    in bytes, None where none has a sample yet, and `rank`, the one that held most of it}}; None without a measured step.
    """
    time = StepTime(found.windows[found.measured])
    if not time.total:
        return None
    edges = np.arange(bins + 1) * time.total // bins
    held: dict[str, dict[int, np.ndarray]] = {}
    for rank in trace.present:
        samples = trace.memory(rank)
        samples = samples[np.argsort(samples["time"], kind="stable")]
        for kind in np.unique(samples["kind"]).tolist():
            mine = samples[samples["kind"] == kind]
            held.setdefault(kind.decode(), {})[rank] = _binned(time.at(mine["time"]), mine["bytes"], edges)
    kinds = {}
    for kind, by_rank in held.items():
        rows = np.stack(list(by_rank.values()))
        known = (rows >= 0).sum(axis=0)
        mean = np.where(rows >= 0, rows, 0).sum(axis=0) / np.maximum(known, 1)
        kinds[kind] = {
            "most": [int(b) if n else None for b, n in zip(rows.max(axis=0), known, strict=True)],
            "mean": [float(b) if n else None for b, n in zip(mean, known, strict=True)],
            "rank": list(by_rank)[int(rows.max(axis=1).argmax())],
        }
    return {"times_s": ((edges[1:] + edges[:-1]) / 2e9).tolist(), "kinds": kinds}


def _binned(times: np.ndarray, sizes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The most held in each bin, -1 before the first sample; `times` ascend, several in one instant count as the last of them."""
    last = np.append(times[1:] > times[:-1], True)
    times, sizes = times[last], sizes[last]
    out = np.full(len(edges) - 1, -1, np.int64)
    before = np.searchsorted(times, edges[:-1], side="right") - 1  # what is held when a bin begins
    out[before >= 0] = sizes[before[before >= 0]]
    bin_of = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(out) - 1)
    inside = (times > edges[0]) & (times < edges[-1])
    np.maximum.at(out, bin_of[inside], sizes[inside])
    return out
