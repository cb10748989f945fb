"""The most that each rank held, by kind: stash, parameters, gradients, optimizer, device."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.trace import Trace


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
