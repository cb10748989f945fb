"""The largest elements only, the others owed.

    due       3  -1   0  -7   2   1      keep = 1/3: k = 2 elements of each rank
    sent      3           -7             places and values, from every rank to all, added in order of ranks
    owed      0  -1   0   0   2   1      added to the next gradient

Stich, Cordonnier and Jaggi 2018, "Sparsified SGD with memory", algorithm 1 with the compressor top_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.nn.parameters import FlatMap
from hpcpar.ops.array import array_module
from hpcpar.parallel.compress.codec import Codec, Memory

if TYPE_CHECKING:
    from hpcpar.config import Sync


def kept(n: int, keep: float) -> int:
    """How many of n elements are sent: at least one."""
    return max(1, round(keep * n))


def largest(x: Any, k: int) -> Any:
    """The places of the k largest |x| of x (n,), ascending (k,); of equal ones the first. What is not a number is larger than all."""
    xp = array_module(x)
    size = xp.abs(x)
    size = xp.where(xp.isnan(size), xp.inf, size)
    edge = xp.partition(size, x.size - k)[x.size - k]
    above = xp.flatnonzero(size > edge)
    level = xp.flatnonzero(size == edge)[: k - above.size]
    return xp.sort(xp.concatenate([above, level]))


class TopK(Codec):
    """The codec: `keep` is the share of the elements of a bucket that is sent, with 4 bytes for the place of each."""

    rounds = 1

    def __init__(self, at: FlatMap, flat: Any, keep: float):
        self._flat, self._keep = flat, keep
        self.memory: Memory = Memory(at.size, array_module(flat), flat.dtype)

    @classmethod
    def of(cls, sync: Sync, at: FlatMap, flat: Any, seed: int) -> TopK:
        """The codec of a description."""
        return cls(at, flat, sync.keep)

    def exchange(self, low: int, high: int, groups: Sequence[Group], stage: int) -> Iterator[list[Pending]]:
        """All-gather the k largest elements of every rank."""
        (group,) = groups
        flat, n = self._flat[low:high], group.size
        xp = array_module(flat)
        k = kept(high - low, self._keep)
        due = self.memory.due(flat, low, high)
        chosen = largest(due, k)
        places, values = xp.empty(n * k, xp.int32), xp.empty(n * k, flat.dtype)
        mine = slice(group.index * k, (group.index + 1) * k)
        places[mine], values[mine] = chosen, due[chosen]
        due[chosen] = 0
        yield [group.allgather_start(a, [k] * n, stage=stage) for a in (places, values)]
        flat[...] = 0
        for rank in range(n):
            part = slice(rank * k, (rank + 1) * k)
            flat[places[part]] += values[part]  # the places of one rank are distinct
