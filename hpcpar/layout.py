"""Which slice of a global array a rank holds: arithmetic alone, for uneven sizes too.

cut(10, 4) -> 3, 3, 2, 2       the first n % parts pieces hold one more
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hpcpar.mesh import Mesh


def cut(n: int, parts: int, index: int) -> slice:
    """The slice of `range(n)` that piece `index` of `parts` holds."""
    small, more = divmod(n, parts)
    start = index * small + min(index, more)
    return slice(start, start + small + (index < more))


@dataclass(frozen=True)
class Layout:
    """A global shape and the mesh axes that cut its dims: `cuts` holds (dim, axis) pairs; the other axes hold replicas."""

    shape: tuple[int, ...]
    cuts: tuple[tuple[int, str], ...] = ()

    def slices(self, mesh: Mesh, rank: int) -> tuple[slice, ...]:
        """The slice of the global array that a rank holds, one a dim."""
        at, out = mesh.coordinates(rank), [slice(0, n) for n in self.shape]
        for dim, axis in self.cuts:
            out[dim] = cut(self.shape[dim], mesh.size(axis), at[axis])
        return tuple(out)

    def local_shape(self, mesh: Mesh, rank: int) -> tuple[int, ...]:
        """The shape of what a rank holds."""
        return tuple(s.stop - s.start for s in self.slices(mesh, rank))

    def local_bytes(self, mesh: Mesh, rank: int, itemsize: int) -> int:
        """The bytes of what a rank holds."""
        return prod(self.local_shape(mesh, rank)) * itemsize
