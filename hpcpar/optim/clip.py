"""Clipping by the global norm of the gradient.

norm = sqrt(sum over parameters of |g|^2)        coefficient = min(1, max_norm / (norm + 1e-6))
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, sqrt


def norm(squares: Mapping[str, float]) -> float:
    """The global norm from the sum of squares of each parameter's gradient, by name.

    Added in the order of the names, so that the norm does not depend on which rank held which parameter.
    """
    total = 0.0
    for name in sorted(squares):
        total += squares[name]
    return sqrt(total)


def coefficient(norm: float, max_norm: float) -> float | None:
    """What the gradient is multiplied by; max_norm = 0 clips nothing. None where the norm is not finite: the update is to be skipped."""
    if not isfinite(norm):
        return None
    if not max_norm:
        return 1.0
    return min(1.0, max_norm / (norm + 1e-6))
