"""The norm of the whole gradient, the same bits for every plan: squares a parameter, summed in name order.

Each rank fills the places of the parameters that it is the first to hold; the all-reduce adds only zeros to them, so it is exact.
Where parameters are sharded, each rank adds the squares of its pieces: the same but for the order of one parameter's sum. Experts that are
cut over ranks add up in the order of the experts, from a row for each of those ranks: every replica then finds the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group, World
from hpcpar.ops.update import square_sum

TAG = 28000


def squares_of(names: Sequence[str], mine: Mapping[str, Sequence[Any]]) -> np.ndarray:
    """The sum of squares of the pieces of each parameter's gradient (len(names),), in name order; zero for those that are not `mine`."""
    squares = np.zeros(len(names))
    for i, name in enumerate(names):
        for piece in mine.get(name, ()):
            squares[i] += square_sum(piece.reshape(-1))
    return squares


def norm_of(squares: np.ndarray) -> float:
    """The norm from the squares of all parameters, added in name order; infinite if any gradient is not finite."""
    total = 0.0
    for square in squares.tolist():
        total += square
    return math.sqrt(total) if math.isfinite(total) else math.inf


def gradient_norm(names: Sequence[str], mine: Mapping[str, Sequence[Any]], group: Group | None, place: tuple[int, int] = (0, 1)) -> float:
    """The norm over all parameters of the model.

    `names` are all parameters in name order, `mine` the pieces of their gradients that this rank counts, `group` the ranks that count;
    `place` says which of how many pieces of the experts this rank holds.
    """
    index, pieces = place
    squares = np.zeros((pieces, len(names)))
    squares[index] = squares_of(names, mine)
    if group is not None and group.size > 1:
        group.allreduce(squares, "sum", "norm")
    return norm_of(sum(squares[1:], squares[0]))


class Shares:
    """The squares of one rank on their way to all others of a group, and theirs to it, without a collective.

    A collective moves only while every rank on its tree is inside MPI; here a rank that computes holds nobody up.
    """

    def __init__(self, world: World, squares: np.ndarray, group: Group, stage: int):
        self._squares = squares
        others = [r for r in group.ranks if r != world.rank]
        self._before = sum(r < world.rank for r in others)
        self._found = [np.empty_like(squares) for _ in others]
        self._pending: list[Pending] = [
            world.receive_start(a, r, TAG, "norm", group.axis, stage=stage) for a, r in zip(self._found, others, strict=True)
        ]
        self._pending += [world.send_start(squares, r, TAG, "norm", group.axis, stage=stage) for r in others]

    def finish(self) -> np.ndarray:
        """The squares of all parameters."""
        for pending in self._pending:
            pending.wait()
        found = [*self._found[: self._before], self._squares, *self._found[self._before :]]
        return sum(found[1:], found[0])  # in the order of the ranks: the same bits on all of them
