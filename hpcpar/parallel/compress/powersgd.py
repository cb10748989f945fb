"""Each matrix as two thin factors: one step of the power iteration, from where the last one ended.

    M (out, in) = gradient + owed of a rank        Q (in, r) of the step before, the same on all ranks
    P = M Q                                        all-reduced: the sum over ranks        out x r
    P = orthonormal(P)
    Q = M' P                                       all-reduced: the sum over ranks        in x r
    sum of M ~ P Q'                                owed = M - P (M' P)'

Vectors, and matrices that two factors would not make smaller, are summed whole with the P. The sum over ranks is exact where its rank is at
most r. Vogels, Karimireddy and Jaggi 2019, "PowerSGD", algorithms 1 and 2, with sums for means: gradients carry 1/labels already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.nn.parameters import FlatMap, Span
from hpcpar.ops.array import array_module
from hpcpar.parallel.compress.codec import Codec, Memory

if TYPE_CHECKING:
    from hpcpar.config import Sync


def factored(shape: tuple[int, ...], rank: int) -> bool:
    """Whether two factors of a parameter's gradient have fewer elements than it has."""
    return len(shape) == 2 and (shape[0] + shape[1]) * rank < shape[0] * shape[1]


def sent(shapes: Mapping[str, tuple[int, ...]], rank: int) -> int:
    """Elements that are all-reduced for parameters of these shapes: (out + in) rank a matrix in factors, everything of the others."""
    return sum((s[0] + s[1]) * rank if factored(s, rank) else int(np.prod(s)) for s in shapes.values())


def first_factor(name: str, columns: int, rank: int, seed: int) -> np.ndarray:
    """Q (columns, rank) before the first step: normal, from (seed, name) alone."""
    digest = hashlib.sha256(f"{seed}/{name}/powersgd".encode()).digest()
    bits = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))
    return np.random.Generator(bits).standard_normal((columns, rank))


class PowerSGD(Codec):
    """The codec: `rank` columns of each factor."""

    rounds = 2

    def __init__(self, at: FlatMap, flat: Any, rank: int, seed: int):
        self._flat, self._rank = flat, rank
        xp = array_module(flat)
        self.memory: Memory = Memory(at.size, xp, flat.dtype)
        self._spans = at.names
        self.factors: dict[str, Any] = {
            n: xp.asarray(first_factor(n, s.shape[1], rank, seed), dtype=flat.dtype) for n, s in at.names.items() if factored(s.shape, rank)
        }
        self._next: dict[str, Any] = {}

    @classmethod
    def of(cls, sync: Sync, at: FlatMap, flat: Any, seed: int) -> PowerSGD:
        """The codec of a description."""
        return cls(at, flat, sync.rank, seed)

    def exchange(self, low: int, high: int, groups: Sequence[Group], stage: int) -> Iterator[list[Pending]]:
        """All-reduce P with all that is not factored, then Q."""
        flat, due = self._flat, self.memory.due(self._flat[low:high], low, high)
        xp, rank = array_module(flat), self._rank
        inside = {n: s for n, s in self._spans.items() if low <= s.start and s.stop <= high}
        thin = {n: s for n, s in inside.items() if n in self.factors}
        whole = [s for n, s in inside.items() if n not in thin]
        matrices = {n: due[s.start - low : s.stop - low].reshape(s.shape) for n, s in thin.items()}

        left = xp.empty(sum(s.shape[0] * rank for s in thin.values()) + sum(s.stop - s.start for s in whole), flat.dtype)
        columns, rest = _views(left, thin, 0, rank)
        for name, m in matrices.items():
            columns[name][...] = m @ self.factors[name]
        at = rest
        for s in whole:
            mine = due[s.start - low : s.stop - low]
            left[at : at + mine.size] = mine
            mine[...] = 0
            at += mine.size
        yield [groups[0].allreduce_start(left, "sum", "allreduce", stage=stage)]

        for s in whole:
            flat[s.start : s.stop] = left[rest : rest + s.stop - s.start]
            rest += s.stop - s.start
        if not thin:
            return
        right = xp.empty(sum(s.shape[1] * rank for s in thin.values()), flat.dtype)
        rows, _ = _views(right, thin, 1, rank)
        for name, m in matrices.items():
            p = columns[name] = orthonormal(columns[name])
            rows[name][...] = m.T @ p
            m -= p @ rows[name].T
        yield [groups[1].allreduce_start(right, "sum", "allreduce", stage=stage)]

        for name, s in thin.items():
            flat[s.start : s.stop] = (columns[name] @ rows[name].T).reshape(-1)
        self._next |= rows

    def settle(self, applied: bool) -> None:
        """The next step starts from the factors of this one, or, where it was skipped, from those that it started from."""
        super().settle(applied)
        if applied:
            self.factors |= self._next
        self._next = {}

    def held_bytes(self) -> int:
        """Bytes of what is owed and of the factors."""
        return super().held_bytes() + sum(q.nbytes for q in self.factors.values())


def orthonormal(p: Any) -> Any:
    """An orthonormal basis (out, r) of a space that holds the columns of p (out, r), by Householder's reflections.

    Columns that depend on others leave some direction at right angles to the rest: the projection stays one.
    """
    return array_module(p).linalg.qr(p)[0]


def _views(flat: Any, spans: Mapping[str, Span], dim: int, rank: int) -> tuple[dict[str, Any], int]:
    """(n, rank) matrices side by side from the beginning of `flat`, n a parameter's size in `dim`, and where they end."""
    out, at = {}, 0
    for name, s in spans.items():
        n = s.shape[dim] * rank
        out[name] = flat[at : at + n].reshape(s.shape[dim], rank)
        at += n
    return out, at
