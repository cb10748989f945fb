"""The norm of the whole gradient, the same bits for every plan: squares a parameter, summed in name order.

Each rank fills the places of the parameters that it is the first to hold; the all-reduce adds only zeros to them, so it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcpar.comm.world import Group
from hpcpar.ops.update import square_sum


def squares_of(names: Sequence[str], mine: Mapping[str, Any]) -> np.ndarray:
    """The sum of squares of each parameter's gradient (len(names),), in name order; zero for those that are not `mine`."""
    squares = np.zeros(len(names))
    for i, name in enumerate(names):
        if name in mine:
            squares[i] = square_sum(mine[name].reshape(-1))
    return squares


def norm_of(squares: np.ndarray) -> float:
    """The norm from the squares of all parameters, added in name order; infinite if any gradient is not finite."""
    total = 0.0
    for square in squares.tolist():
        total += square
    return math.sqrt(total) if math.isfinite(total) else math.inf


def gradient_norm(names: Sequence[str], mine: Mapping[str, Any], group: Group | None) -> float:
    """The norm over all parameters of the model.

    `names` are all parameters in name order, `mine` the gradients of those that this rank counts, `group` the ranks that count.
    """
    squares = squares_of(names, mine)
    if group is not None and group.size > 1:
        group.allreduce(squares, "sum", "norm")
    return norm_of(squares)
