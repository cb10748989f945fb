"""Ulysses: an all-to-all turns positions with all heads into all positions with some heads, and attention is whole again.

    rank 0  positions 0 1, heads a b                          positions 0 1 2 3, heads a
                                      -- to_heads -->                                        and back with to_sequence, its adjoint
    rank 1  positions 2 3, heads a b                          positions 0 1 2 3, heads b

Query, key and value leave in one exchange, the result in another (Jacobs et al., arXiv:2309.14509, section 3). Key/value heads fewer than
ranks go to every rank with a head that reads them, and their gradients are summed on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hpcpar.comm.world import Group
from hpcpar.forms.context import heads_of, runs, shares
from hpcpar.ops import attention
from hpcpar.ops.array import array_module

Cut = Sequence[slice]  # which heads of an array each rank has
Shapes = list[tuple[int, ...]]


class Ulysses:
    """Attention over the ranks of `group`, of contiguous pieces of the positions."""

    def __init__(self, group: Group, form: str, positions: int):
        self.group, self.world, self.positions = group, group.world, positions
        self.rows = [runs(form, positions, group.size, i)[0] for i in range(group.size)]

    def forward(self, q: Any, k: Any, v: Any, out: Any) -> tuple[Any, ...]:
        """q (B, T, H, K), k and v (B, T, G, K) of this rank's T positions -> out (B, T, H, K), written; saved."""
        heads, groups = self._cuts(q, k)
        q, k, v = self.to_heads((q, k, v), (heads, groups, groups))
        o = array_module(q).empty_like(q)
        saved = []
        for h, g in shares(heads[-1].stop, groups[-1].stop, self.group.size, self.group.index):
            saved.append(attention.forward(q[:, :, h], k[:, :, g], v[:, :, g], o[:, :, h], 0, self.world.progress))
        self.to_sequence((o,), (heads,), (out,))
        return tuple(saved)

    def backward_input(self, dout: Any, saved: tuple[Any, ...], dq: Any, dk: Any, dv: Any) -> None:
        """dout (B, T, H, K) -> dq, dk and dv, written."""
        xp = array_module(dout)
        heads, groups = self._cuts(dq, dk)
        (do,) = self.to_heads((dout,), (heads,))
        n = _width(groups[self.group.index])
        q, k, v = xp.empty_like(do), *(xp.empty((*do.shape[:2], n, do.shape[3]), do.dtype) for _ in "kv")
        pieces = shares(heads[-1].stop, groups[-1].stop, self.group.size, self.group.index)
        for (h, g), kept in zip(pieces, saved, strict=True):
            attention.backward_input(do[:, :, h], kept, q[:, :, h], k[:, :, g], v[:, :, g], 0, self.world.progress)
        self.to_sequence((q, k, v), (heads, groups, groups), (dq, dk, dv))

    def to_heads(self, arrays: Sequence[Any], cuts: Sequence[Cut]) -> tuple[Any, ...]:
        """arrays (B, T, X, K) of this rank's T positions -> (B, all positions, the heads of X that its cut gives this rank, K)."""
        r, xp, like = self.group.index, array_module(arrays[0]), arrays[0]
        send, leaving = self._packed(self._to_others(like, cuts), like)
        for j, views in enumerate(leaving):
            for to, a, c in zip(views, arrays, cuts, strict=j != r):
                to[...] = a[:, :, c[j]]
        receive, arrived = self._packed(self._from_others(like, cuts), like)
        self._exchange(send, leaving, receive, arrived, "to_heads")
        arrived[r] = [a[:, :, c[r]] for a, c in zip(arrays, cuts, strict=True)]
        out = tuple(xp.empty((len(like), self.positions, _width(c[r]), like.shape[3]), like.dtype) for c in cuts)
        for rows, pieces in zip(self.rows, arrived, strict=True):
            for whole, piece in zip(out, pieces, strict=True):
                whole[:, rows] = piece
        return out

    def to_sequence(self, arrays: Sequence[Any], cuts: Sequence[Cut], into: Sequence[Any]) -> None:
        """The adjoint of `to_heads`, written into arrays (B, T, X, K): what several ranks have of one head is summed in their order."""
        r, like = self.group.index, arrays[0]
        send, leaving = self._packed(self._from_others(like, cuts), like)
        for i, (rows, views) in enumerate(zip(self.rows, leaving, strict=True)):
            for to, a in zip(views, arrays, strict=i != r):
                to[...] = a[:, rows]
        receive, arrived = self._packed(self._to_others(like, cuts), like)
        self._exchange(send, leaving, receive, arrived, "to_sequence")
        arrived[r] = [a[:, self.rows[r]] for a in arrays]
        filled = [0] * len(into)  # heads below are written, and the last of them perhaps by an earlier rank too
        for j, pieces in enumerate(arrived):
            for x, (to, piece, c) in enumerate(zip(into, pieces, cuts, strict=True)):
                both = filled[x] - c[j].start
                to[:, :, c[j].start : filled[x]] += piece[:, :, :both]
                to[:, :, filled[x] : c[j].stop] = piece[:, :, both:]
                filled[x] = c[j].stop

    def _to_others(self, like: Any, cuts: Sequence[Cut]) -> list[Shapes]:
        """What this rank has of each other's heads: its own positions."""
        r, t = self.group.index, _width(self.rows[self.group.index])
        return [[(len(like), t, _width(c[j]), like.shape[3]) for c in cuts] if j != r else [] for j in range(self.group.size)]

    def _from_others(self, like: Any, cuts: Sequence[Cut]) -> list[Shapes]:
        """What the others have of this rank's heads: their positions."""
        r = self.group.index
        return [
            [(len(like), _width(rows), _width(c[r]), like.shape[3]) for c in cuts] if i != r else [] for i, rows in enumerate(self.rows)
        ]

    def _exchange(self, send: Any, leaving: list[list[Any]], receive: Any, arrived: list[list[Any]], operation: str) -> None:
        """Fill `receive` with what the others send; a rank's own piece does not travel."""
        there, back = ([sum(view.size for view in views) for views in every] for every in (leaving, arrived))
        self.group.alltoall_start(send, there, receive, back, operation).wait()

    def _cuts(self, q: Any, k: Any) -> tuple[Cut, Cut]:
        """The heads and the key/value heads of each rank."""
        every = [heads_of(q.shape[2], k.shape[2], self.group.size, i) for i in range(self.group.size)]
        return [h for h, _ in every], [g for _, g in every]

    @staticmethod
    def _packed(shapes: list[Shapes], like: Any) -> tuple[Any, list[list[Any]]]:
        """One flat array for the pieces of all ranks, and a view of each: (flat, views by rank)."""
        flat = array_module(like).empty(sum(prod(s) for of in shapes for s in of), like.dtype)
        views: list[list[Any]] = [[] for _ in shapes]
        at = 0
        for mine, of in zip(views, shapes, strict=True):
            for shape in of:
                mine.append(flat[at : at + prod(shape)].reshape(shape))
                at += prod(shape)
        return flat, views


def _width(piece: slice) -> int:
    return piece.stop - piece.start
