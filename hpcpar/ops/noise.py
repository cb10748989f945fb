"""Random numbers as pure functions of (key, global element index), and the normal distribution: nothing is drawn in an order.

u = (h + 1/2) / 2^32, h the hash of `dropout`        z = sqrt(-2 ln u) cos(2 pi v), v from a second key (Box and Muller 1958)
"""

from __future__ import annotations

from functools import cache
from math import pi, prod, sqrt
from typing import Any

import numpy as np

from hpcpar.ops.array import Array, Cost, Part, array_module
from hpcpar.ops.dropout import hashes

SECOND = 0x9E3779B97F4A7C15  # makes the key of v from that of u
FAR = 8.5  # Phi is 0 or 1 to every digit beyond


def uniform(xp: Any, key: int, first: int, shape: tuple[int, ...]) -> Array:
    """Numbers in (0, 1), float64; the first element has the global index `first`."""
    return ((hashes(xp, key, first, prod(shape)).astype(xp.float64) + 0.5) / 2**32).reshape(shape)


def normal(xp: Any, key: int, first: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Standard normal numbers; the first element has the global index `first`."""
    u, v = uniform(xp, key, first, shape), uniform(xp, key ^ SECOND, first, shape)
    return (xp.sqrt(-2 * xp.log(u)) * xp.cos(2 * pi * v)).astype(dtype)


def density(x: Array) -> Array:
    """The standard normal density, e^(-x^2 / 2) / sqrt(2 pi)."""
    return array_module(x).exp(-0.5 * x * x) * (1 / sqrt(2 * pi))


def distribution(x: Array) -> Array:
    """Phi(x) = 1/2 + the integral of the density from 0 to x, by Gauss and Legendre on 40 nodes, within 1e-14."""
    c = array_module(x).clip(x, -FAR, FAR)
    total = array_module(x).zeros_like(x)
    for node, weight in _nodes():
        total += weight * density(c * (0.5 * (1 + node)))
    return 0.5 + 0.5 * c * total


@cache
def _nodes() -> tuple[tuple[float, float], ...]:
    """(node, weight) on -1 .. 1."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    return tuple(zip(nodes.tolist(), weights.tolist(), strict=True))


def cost(part: Part, rows: int, width: int, itemsize: int = 4) -> Cost:
    """The work of normal numbers (rows, width); there is no backward."""
    n = rows * width
    return Cost(80 * n, n * itemsize) if part == "F" else Cost(0, 0)
