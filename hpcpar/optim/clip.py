"""Clipping by the global norm of the gradient.

norm = sqrt(sum over parameters of |g|^2)        coefficient = min(1, max_norm / (norm + 1e-6))
"""

from __future__ import annotations

from math import isfinite


def coefficient(norm: float, max_norm: float) -> float | None:
    """What the gradient is multiplied by; max_norm = 0 clips nothing. None where the norm is not finite: the update is to be skipped."""
    if not isfinite(norm):
        return None
    if not max_norm:
        return 1.0
    return min(1.0, max_norm / (norm + 1e-6))
