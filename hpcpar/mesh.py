"""Named axes of ranks: rank <-> coordinates, groups and neighbours of ANY rank, without MPI.

    order ("pp", "dp", "cp", "tp"), slowest first; dp = 2, pp = 2:

             dp=0  dp=1
      pp=0     0     1        group("dp", 2) = (2, 3)
      pp=1     2     3        group("pp", 2) = (0, 2)

Nothing here is global: a Mesh is handed to whoever needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.config import Plan

AXES = ("pp", "dp", "cp", "tp")


@dataclass(frozen=True)
class Mesh:
    """Ranks in a grid of named axes; `order` names them from slowest to fastest, `sizes` goes with it."""

    order: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan) -> Mesh:
        """The mesh of a plan; raises PlanError if plan.order is no permutation of the axes.

        With replicas a stage, the pp axis holds them all, stage by stage.
        """
        if sorted(plan.order) != sorted(AXES):
            raise PlanError(f"plan.order = {list(plan.order)} must name each of {', '.join(AXES)} once, slowest first")
        sizes = {axis: getattr(plan, axis) for axis in AXES}
        if plan.replicas:
            sizes |= {"pp": sum(plan.replicas), "dp": 1}
        return cls(plan.order, tuple(sizes[axis] for axis in plan.order))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return prod(self.sizes)

    def size(self, axis: str) -> int:
        """The number of ranks along an axis."""
        return self.sizes[self.order.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is: {axis: index}."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank {rank} is not among {self.ranks}")
        out = {}
        for axis, size in zip(reversed(self.order), reversed(self.sizes), strict=True):
            rank, out[axis] = divmod(rank, size)
        return out

    def rank(self, **at: int) -> int:
        """The rank at the given coordinates; axes that are left out are 0."""
        rank = 0
        for axis, size in zip(self.order, self.sizes, strict=True):
            index = at.get(axis, 0)
            if not 0 <= index < size:
                raise ValueError(f"{axis} = {index} is not among {size}")
            rank = rank * size + index
        return rank

    def group(self, axes: str | Iterable[str], rank: int) -> tuple[int, ...]:
        """The ranks that differ from `rank` along the given axes only, ascending in those axes (slowest first)."""
        wanted = {axes} if isinstance(axes, str) else set(axes)
        mine = self.coordinates(rank)
        here = [{}]  # type: list[dict[str, int]]
        for axis, size in zip(self.order, self.sizes, strict=True):
            span = range(size) if axis in wanted else (mine[axis],)
            here = [{**at, axis: i} for at in here for i in span]
        return tuple(self.rank(**at) for at in here)

    def neighbour(self, axis: str, rank: int, step: int = 1) -> int:
        """The rank `step` further along an axis, around the end."""
        at = self.coordinates(rank)
        at[axis] = (at[axis] + step) % self.size(axis)
        return self.rank(**at)
