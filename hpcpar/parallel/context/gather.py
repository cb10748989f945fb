"""Attention with all keys and values gathered: one all-gather forward, in the backward another one and a reduce-scatter.

    rank 0   q0 q3   | k0 k3 |  all-gather   | k0 k1 k2 k3 |     q0 sees k0,  q3 sees k0 .. k3
    rank 1   q1 q2   | k1 k2 |               | k0 k1 k2 k3 |     q1 sees k0 k1,  q2 sees k0 .. k2

The chunks are those of the zig-zag, so that each rank has the same share of the work. What was gathered is not kept: the stash holds a
rank's own keys and values alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from hpcpar.comm.world import Group
from hpcpar.forms.context import length, runs
from hpcpar.ops import attention
from hpcpar.ops.array import array_module


class Gather:
    """Attention over the ranks of `group`, each with two chunks of the positions."""

    def __init__(self, group: Group, form: str, positions: int):
        self.group, self.world, self.positions = group, group.world, positions
        self.runs = [runs(form, positions, group.size, i) for i in range(group.size)]

    def forward(self, q: Any, k: Any, v: Any, out: Any) -> tuple[Any, ...]:
        """q (B, T, H, K), k and v (B, T, G, K) of this rank's T positions -> out (B, T, H, K), written; saved."""
        keys, values = self.gathered(k, v)
        lse = []
        for rows, run in self._mine():
            seen = slice(0, run.stop)
            lse.append(attention.forward(q[:, rows], keys[:, seen], values[:, seen], out[:, rows], run.start)[4])
        return q, k, v, out, tuple(lse)

    def backward_input(self, dout: Any, saved: tuple[Any, ...], dq: Any, dk: Any, dv: Any) -> None:
        """dout (B, T, H, K) -> dq, dk and dv, written."""
        q, k, v, out, lse = saved
        keys, values = self.gathered(k, v)
        xp = array_module(q)
        total = xp.zeros((2, *keys.shape), k.dtype)
        for (rows, run), piece in zip(self._mine(), lse, strict=True):
            seen = slice(0, run.stop)
            part = xp.empty((2, *keys[:, seen].shape), k.dtype)
            block = q[:, rows], keys[:, seen], values[:, seen], out[:, rows], piece
            attention.backward_input(dout[:, rows], block, dq[:, rows], part[0], part[1], run.start)
            total[:, :, seen] += part
        self.scattered(total, dk, dv)

    def gathered(self, k: Any, v: Any) -> tuple[Any, Any]:
        """k and v (B, T, G, K) of this rank's positions -> of all positions, in order."""
        xp = array_module(k)
        flat, counts, pieces = self._flat(xp, k)
        for to, a in zip(pieces[self.group.index], (k, v), strict=True):
            to[...] = a
        self.group.allgather_start(flat, counts, "keys_values").wait()
        whole = xp.empty((2, k.shape[0], self.positions, *k.shape[2:]), k.dtype)
        for piece, held in zip(pieces, self.runs, strict=True):
            for rows, run in _places(held):
                whole[:, :, run] = piece[:, :, rows]
        return whole[0], whole[1]

    def scattered(self, total: Any, dk: Any, dv: Any) -> None:
        """total (2, B, all positions, G, K) summed over ranks -> this rank's rows of it, written: the adjoint of `gathered`."""
        xp = array_module(dk)
        flat, counts, pieces = self._flat(xp, dk)
        for piece, held in zip(pieces, self.runs, strict=True):
            for rows, run in _places(held):
                piece[:, :, rows] = total[:, :, run]
        mine = xp.empty((2, *dk.shape), dk.dtype)
        self.group.reduce_scatter_start(flat, mine.reshape(-1), counts, "keys_values_gradient").wait()
        dk[...], dv[...] = mine[0], mine[1]

    def _flat(self, xp: Any, k: Any) -> tuple[Any, list[int], list[Any]]:
        """An array for the keys and values of all ranks one behind the other, elements a rank, and views of the pieces (2, B, T, G, K)."""
        shapes = [(2, k.shape[0], length(held), *k.shape[2:]) for held in self.runs]
        counts = [prod(shape) for shape in shapes]
        flat, pieces, at = xp.empty(sum(counts), k.dtype), [], 0
        for shape, count in zip(shapes, counts, strict=True):
            pieces.append(flat[at : at + count].reshape(shape))
            at += count
        return flat, counts, pieces

    def _mine(self) -> Iterator[tuple[slice, slice]]:
        return _places(self.runs[self.group.index])


def _places(held: tuple[slice, ...]) -> Iterator[tuple[slice, slice]]:
    """For each run that a rank holds its rows there, and the run."""
    at = 0
    for run in held:
        yield slice(at, at + run.stop - run.start), run
        at += run.stop - run.start
