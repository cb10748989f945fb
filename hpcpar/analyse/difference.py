"""How far two runs are apart: losses, gradient norms and weights.

    difference(a, b) = max|a - b| / max(max|a|, max|b|, 1e-3 x RMS)      RMS: over all elements of all parameters of the run

The floor keeps a parameter that is mathematically zero, and holds only rounding, from counting as far apart. 0 is bit-equal. Not a number
and infinity equal only themselves; a value, step or name that only one run has makes the difference infinite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.errors import PlanError

FLOOR = 1e-3
Key = tuple[int, int]  # step and rank; -1 for a value of all ranks


def relative(a: np.ndarray, b: np.ndarray, rms: float = 0.0) -> float:
    """The relative difference of two arrays of one shape; infinite for unequal shapes or where a non-finite value meets another one."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    a, b = a[finite], b[finite]
    if not len(a):
        return 0.0
    apart = _largest(a - b)
    return apart / max(_largest(a), _largest(b), FLOOR * rms) if apart else 0.0


def rms(arrays: Mapping[str, np.ndarray]) -> float:
    """The root of the mean square over all finite elements of all arrays."""
    square, count = 0.0, 0
    for array in arrays.values():
        values = array[np.isfinite(array)].astype(np.float64)
        square += float(np.sum(values * values))
        count += values.size
    return math.sqrt(square / count) if count else 0.0


def weights(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """`weights`, the largest difference over parameters, `worst_weight` its name, and `notes` on what cannot be compared.

    The floor is that of the run with the larger RMS.
    """
    floor = max(rms(a), rms(b))
    found: dict[str, float] = {}
    notes = []
    for name in sorted(set(a) | set(b)):
        if name not in a or name not in b:
            found[name] = math.inf
            notes.append(f"parameter {name} is only in the {'second' if name in b else 'first'} run")
            continue
        found[name] = relative(a[name], b[name], floor)
        if a[name].shape != b[name].shape:
            notes.append(f"parameter {name} is {a[name].shape} in the first run and {b[name].shape} in the second")
        elif found[name] == math.inf:
            notes.append(f"parameter {name} has values that are not finite in one run only")
    worst = max(found, key=lambda name: found[name], default=None)
    return {"weights": found[worst] if worst else 0.0, "worst_weight": worst, "parameters": len(found), "notes": notes}


def series(name: str, a: Mapping[Key, float], b: Mapping[Key, float]) -> dict[str, Any]:
    """`name`, the largest relative difference of two values by (step, rank), `<name>_step` where it is, and `notes`.

    `<name>_common` leaves out what only one run has; None if the runs have no step in common.
    """
    found = {at: relative(np.array([a[at]]), np.array([b[at]])) for at in sorted(set(a) & set(b))}
    notes = []
    for which, one, other in (("first", a, b), ("second", b, a)):
        alone = sorted(set(one) - set(other))
        if alone:
            notes.append(
                f"{name}: {len(alone)} {'step is' if len(alone) == 1 else 'steps are'} only in the {which} run, from step {alone[0][0]}"
            )
    worst = max(found, key=lambda at: found[at], default=None)
    common = None if worst is None else found[worst]
    largest = math.inf if notes or common is None else common
    return {name: largest, f"{name}_step": worst[0] if worst else None, f"{name}_common": common, "notes": notes}


def read_metrics(folder: str | Path) -> dict[str, dict[Key, float]]:
    """The columns loss and grad_norm of a run's metrics.jsonl, by (step, rank); rank is -1 where a line is for all.

    A step that was run twice, before and after a resume, counts as it was last. Raises PlanError if the file is missing or is none.
    """
    path = Path(folder) / "metrics.jsonl"
    out: dict[str, dict[Key, float]] = {"loss": {}, "grad_norm": {}}
    try:
        lines = path.read_text().splitlines()
    except OSError as e:
        raise PlanError(f"{folder} is no run: {path.name}: {e.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            at = int(row["step"]), int(row.get("rank", -1))
            values = {name: float(row[name]) for name in out if row.get(name) is not None}
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            if number == len(lines):  # the last line of a run that was killed while it wrote
                break
            raise PlanError(f"{path}: line {number} is no line of metrics ({type(e).__name__}: {e})") from None
        for name, value in values.items():
            out[name][at] = value
    return out


def _largest(x: np.ndarray) -> float:
    return float(np.max(np.abs(x)))
