"""Experts by the hash of a token's position in its sample: no router, nothing to learn.

Roller et al. 2021, "Hash layers", hash the token's id, which stages behind the first do not have.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.choice import Choice, Place, ranked
from hpcpar.ops import dropout, noise

ROUTER: tuple[str, ...] = ()
NORMALISE = "none"
BALANCE = 0.0


def choose(z: Any, bias: Any, place: Place) -> Choice:
    """z None: the k largest of E hashes of (seed, name, position), with weights 1 / k."""
    xp, moe = place.xp, place.moe
    u = noise.uniform(xp, dropout.key(place.seed, f"{place.name}.hash", 0), 0, (1, place.positions, moe.experts))
    order = xp.tile(ranked(u), (place.groups, place.tokens // place.positions, 1))
    return Choice(xp.full(order.shape, 1 / moe.k, dtype=place.dtype), order, None, ())
