"""PipeDream's dynamic program: consecutive layers to stages and workers to stages, so that the slowest term is as fast as can be.

    A^k(i -> j, m) = min( T^k(i -> j, m),  min over s, r of max( A^k(i -> s, m - r), 2 a_s / B_k, T^k(s+1 -> j, r) ) )
                     one stage             stages for i .. s on m - r components, then a last one, s+1 .. j, on r

The answer is A^L(0 -> N - 1, m_L); T^k, a and B are those of hpcpar.plan.costs (Narayanan et al. 2019, "PipeDream", section 3.1).

Where the paper is silent: all components of every level are used. Of equal answers the one with fewer stages is taken, then the one with
fewer replicas of the last stage, then the earliest cut. **Memory**: whether a stage fits depends on the workers behind it; all are used,
so m says how many are: behind the last stage of A^k(i -> j, m) stand c + (m_k - m) x (workers a component), c being those behind the whole
component. A component that is replicated r times has ceil(c / r) behind each copy, and since ceil(ceil(x / r) / q) = ceil(x / (r q)) whole
numbers are enough: one table of A^k for each c, and the program stays exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.plan.costs import Layers, Level, in_flight
from hpcpar.plan.cut import Partition, Stage, Term


def partition(layers: Layers, levels: Sequence[Level], memory_bytes: int | None = None, straight: bool = False) -> Partition:
    """The fastest cut over the levels (innermost first), with at most `memory_bytes` on a worker; `straight` allows no replicas.

    Raises PlanError where no cut fits, with the smallest memory that one would fit in.
    """
    ranks = prod(level.components for level in levels)
    if straight and ranks > len(layers):
        raise PlanError(
            f"{ranks} stages without replicas cannot be made of {len(layers)} layers; use --ranks <= {len(layers)}, or replicas"
        )
    search = _Search(layers, tuple(levels), _Time(layers, inf if memory_bytes is None else memory_bytes), straight)
    if memory_bytes is not None and search.best == inf:
        least = int(_Search(layers, tuple(levels), _Memory(layers), straight).best)
        raise PlanError(
            f"--memory {memory_bytes}: no cut of {len(layers)} layers over {ranks} ranks fits in so many bytes a rank; "
            f"the smallest that would do is --memory {least}; or use smaller microbatches"
        )
    return search.partition()


def _pairs(values: Sequence[float], empty: float = inf) -> np.ndarray:
    """Sums over i .. j (N, N), added in the order of the layers; `empty` where j < i."""
    n = len(values)
    out = np.full((n, n), empty)
    for i in range(n):
        out[i, i:] = np.cumsum(values[i:])
    return out


class _Time:
    """Seconds a minibatch, within a memory limit."""

    def __init__(self, layers: Layers, limit: float):
        self.limited = limit < inf
        self.compute, self.weights = _pairs(layers.compute_s), _pairs(layers.weight_bytes, 0.0)
        self.outputs = np.array(layers.output_bytes[:-1], float)
        self.memory, self.limit = _Memory(layers), limit

    def worker(self, count: int) -> np.ndarray:
        """A^0 (N, N); infinite where a worker with `count` minibatches in flight holds too much."""
        return np.where(self.memory.worker(count) <= self.limit, self.compute, inf) if self.limited else self.compute

    def replicated(self, inner: np.ndarray, r: int, level: Level) -> np.ndarray:
        """T^k (N, N)."""
        return np.maximum(inner, 2 * (r - 1) * self.weights / level.bytes_per_s) / r if r > 1 else inner

    def border(self, level: Level) -> np.ndarray:
        """The message behind each layer but the last (N - 1,)."""
        return 2 * self.outputs / level.bytes_per_s


class _Memory:
    """Bytes of the fullest worker: the same program finds the smallest limit that can be met."""

    limited = True

    def __init__(self, layers: Layers):
        self.weights, self.stash, self.optimizer = (_pairs(x) for x in (layers.weight_bytes, layers.stash_bytes, layers.optimizer_bytes))

    def worker(self, count: int) -> np.ndarray:
        """What a worker with `count` minibatches in flight holds (N, N)."""
        return count * (self.weights + self.stash) + self.weights + self.optimizer

    def replicated(self, inner: np.ndarray, r: int, level: Level) -> np.ndarray:
        """Each replica holds the same."""
        return inner

    def border(self, level: Level) -> np.ndarray:
        """Messages are not counted (N - 1,)."""
        return np.zeros(len(self.weights) - 1)


@dataclass
class _Table:
    """A^k by m: the best (rows, N), where the last stage starts less one (-1: one stage), and its replicas."""

    best: dict[int, np.ndarray] = field(default_factory=dict)
    cut: dict[int, np.ndarray] = field(default_factory=dict)
    last: dict[int, np.ndarray] = field(default_factory=dict)


class _Search:
    """The program for one measure: tables by (level, workers behind the component), each made once."""

    def __init__(self, layers: Layers, levels: tuple[Level, ...], measure: _Time | _Memory, straight: bool):
        self.layers, self.levels, self.measure, self.straight = layers, levels, measure, straight
        self._tables: dict[tuple[int, int], _Table] = {}
        self._single: dict[tuple[int, int, int], np.ndarray] = {}

    @property
    def best(self) -> float:
        """A^L(0 -> N - 1, m_L)."""
        top = len(self.levels)
        return float(self._table(top, 0).best[self.levels[-1].components][0, -1])

    def _below(self, k: int) -> int:
        """Workers in a component that level k joins."""
        return prod(level.components for level in self.levels[: k - 1])

    def _behind(self, workers: int, r: int) -> int:
        """Workers behind each of r replicas; without a limit it does not matter, and one table serves all."""
        return -(-workers // r) if self.measure.limited else 0

    def _stage(self, k: int, r: int, workers: int) -> np.ndarray:
        """T^k(i -> j, r) (N, N) with so many workers behind."""
        key = k, r, self._behind(workers, r)
        if key not in self._single:
            if k == 1:
                inner = self.measure.worker(in_flight(key[2], 1))
            else:
                inner = self._table(k - 1, key[2]).best[self.levels[k - 2].components]
            self._single[key] = (
                np.full_like(inner, inf) if self.straight and r > 1 else self.measure.replicated(inner, r, self.levels[k - 1])
            )
        return self._single[key]

    def _table(self, k: int, behind: int) -> _Table:
        """A^k with `behind` workers after the component; the top level needs only i = 0."""
        if (k, behind) in self._tables:
            return self._tables[k, behind]
        level, rows = self.levels[k - 1], 1 if k == len(self.levels) else len(self.layers)
        border = self.measure.border(level)
        table = self._tables[k, behind] = _Table()
        for m in range(1, level.components + 1):
            workers = behind + (level.components - m) * self._below(k)
            best = self._stage(k, m, workers)[:rows].copy()
            cut, last = np.full(best.shape, -1), np.full(best.shape, m)
            for r in range(1, 2 if self.straight else m) if m > 1 and len(border) else ():
                before = np.maximum(table.best[m - r][:, :-1], border)  # by s
                through = np.maximum(before[:, :, None], self._stage(k, r, workers)[None, 1:])  # (i, s, j); infinite where j <= s
                s = through.argmin(1)
                found = np.take_along_axis(through, s[:, None], 1)[:, 0]
                better = found < best
                best, cut, last = np.where(better, found, best), np.where(better, s, cut), np.where(better, r, last)
            table.best[m], table.cut[m], table.last[m] = best, cut, last
        return table

    def partition(self) -> Partition:
        """The stages and terms behind the best answer."""
        terms: list[Term] = []
        placed = list(self._placed(len(self.levels), 0, 0, len(self.layers) - 1, (0,), terms))
        stages, behind = [], sum(len(slots) for _, _, slots in placed)
        for i, j, slots in placed:
            r = len(slots)
            behind -= r
            count = in_flight(behind, r)
            compute = sum(self.layers.compute_s[i : j + 1]) / r
            terms.append(Term("compute", i, j, compute))
            reduce = max((t.seconds for t in terms if t.kind == "reduction" and t.first <= i and j <= t.last), default=0.0)
            send = sum(t.seconds for t in terms if t.kind == "message" and t.last == j)
            stages.append(Stage(i, j, r, compute, reduce, send, count, self.layers.held_bytes(i, j, count), slots))
        return Partition(self.layers, self.levels, tuple(stages), tuple(terms))

    def _placed(
        self, k: int, behind: int, i: int, j: int, copies: tuple[int, ...], terms: list[Term]
    ) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """(first layer, last layer, slots) of the stages of A^k(i -> j, m_k), whose copies start at the slots `copies`.

        Copy x of q has the minibatches with number mod q = x, its replica y of r those of them with (number div q) mod r = y: together the
        minibatches with number mod (q r) = y q + x, which is the order of the slots.
        """
        table, level, below, q = self._table(k, behind), self.levels[k - 1], self._below(k), len(copies)
        m, pieces = level.components, []
        while True:
            s, r = int(table.cut[m][i, j]), int(table.last[m][i, j])
            m -= r
            pieces.append((s + 1 if s >= 0 else i, j, r, m))
            if s < 0:
                break
            j = s
        for first, last, r, start in reversed(pieces):
            slots = tuple(copy + (start + y) * below for y in range(r) for copy in copies)
            if r > 1:
                weights = sum(self.layers.weight_bytes[first : last + 1])
                terms.append(Term("reduction", first, last, 2 * (r - 1) * weights / level.bytes_per_s / (r * q), k, r))
            if k == 1:
                yield first, last, slots
            else:
                workers = behind + (level.components - start - r) * below
                yield from self._placed(k - 1, self._behind(workers, r), first, last, slots, terms)
            if (first, last) != pieces[0][:2]:
                terms.append(Term("message", first, last, 2 * self.layers.output_bytes[last] / level.bytes_per_s / q, k))
