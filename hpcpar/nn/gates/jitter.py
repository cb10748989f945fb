"""Noise on what a router reads, in training: every element times its own u, uniform in 1 - j .. 1 + j (Fedus et al. 2021, section 2.4).

router   z = (h u) W'        experts   h as it is
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.choice import Place


def factors(place: Place, width: int) -> Any:
    """u (G*S, width) of tokens with so many elements; None without jitter or without training."""
    j = place.moe.jitter
    if not j or not place.training:
        return None
    u = place.uniform("jitter", width)
    return (1 - j + 2 * j * u).reshape(-1, width).astype(place.dtype)
