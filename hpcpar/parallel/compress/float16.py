"""Half precision on the wire, full precision in the sums.

    rank 0   | a0 | b0 | c0 |   float16, all-to-all   | a0 a1 a2 |  sum in full precision, float16 again  | A |   all-gather   | A B C |
    rank 1   | a1 | b1 | c1 |  ------------------->   | b0 b1 b2 |  --------------------------------->    | B |  ----------->  | A B C |
    rank 2   | a2 | b2 | c2 |                         | c0 c1 c2 |                                        | C |                | A B C |

An element is rounded twice: |error| <= 2^-11 (sum of |g_r| + |sum|) + (N + 1) 2^-25 for N ranks, to first order; below 3e-8 it is rounded
to 0. Beyond 65504 it becomes infinite, and so does the norm: the step is skipped on all ranks. Nothing is owed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.layout import cut
from hpcpar.nn.parameters import FlatMap
from hpcpar.ops.array import array_module
from hpcpar.parallel.compress.codec import Codec

if TYPE_CHECKING:
    from hpcpar.config import Sync


class Float16(Codec):
    """The codec: 2 bytes an element, twice."""

    rounds = 2

    def __init__(self, flat: Any):
        self._flat = flat

    @classmethod
    def of(cls, sync: Sync, at: FlatMap, flat: Any, seed: int) -> Float16:
        """The codec of a description."""
        return cls(flat)

    def exchange(self, low: int, high: int, groups: Sequence[Group], stage: int) -> Iterator[list[Pending]]:
        """Every rank sums one piece of all ranks' halves."""
        first, second = groups
        flat, n = self._flat[low:high], first.size
        xp = array_module(flat)
        pieces = [cut(high - low, n, i) for i in range(n)]
        counts = [p.stop - p.start for p in pieces]
        mine = pieces[first.index]
        size = counts[first.index]
        halves = flat.astype(xp.float16)
        found = xp.empty(n * size, xp.float16)
        yield [first.alltoall_start(_bits(halves), counts, _bits(found), [size] * n, stage=stage)]
        total = xp.zeros(size, flat.dtype)
        for rank in range(n):
            total += found[rank * size : (rank + 1) * size]
        halves[mine] = total.astype(xp.float16)
        yield [second.allgather_start(_bits(halves), counts, stage=stage)]
        flat[...] = halves


def _bits(halves: Any) -> Any:
    """The same memory as integers: half precision is no type of the MPI standard, and nobody adds on the way."""
    return halves.view(array_module(halves).uint16)
