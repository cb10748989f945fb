"""What goes where: the rows of one routing as blocks, one for each source and expert, and where the rows that count stand in them.

    counts exchanged    | e0 e0 | e1 | e2 e2 e2 |                    as many rows as there are
    fixed, at most 3    | 2 e0 e0 . | 1 e1 . . | 3 e2 e2 e2 |        a row that says how many, and room for as many as capacity lets through

    sent, by expert               rank 0   | e0 | e1 | e2 | e3 |        rank 1   | e0 | e1 | e2 | e3 |
                                            \\________/  \\_______________________ /________/
    received, by source           rank 0   | e0 e1 of rank 0 | e0 e1 of rank 1 |
    computed, by expert, source   rank 0   | e0 of 0 | e0 of 1 | e1 of 0 | e1 of 1 |

Ranks hold consecutive samples, so that an expert's rows stand in the order of the tokens of the whole microbatch: the order of the serial
model. A part is a piece of the experts of every rank; the rows of an expert are all in one part, and its sums are those of no parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.forms.expert import held
from hpcpar.forms.ways import part
from hpcpar.ops.array import array_module, host_array


class Blocks:
    """Blocks of room (n,) rows behind each other; in each, behind `head` rows, count (n,) rows count."""

    def __init__(self, count: np.ndarray, room: np.ndarray, head: int, order: np.ndarray | None = None):
        first = np.cumsum(room) - room + head
        self.rows = int(room.sum())
        self._full = bool(head == 0 and (count == room).all())
        if order is not None:
            count, first = count[order], first[order]
        self._places: Any = runs(first, count)

    def gather(self, blocks: Any) -> Any:
        """The rows that count, block by block in `order`."""
        return blocks.take(self._at(blocks), axis=0)

    def spread(self, rows: Any) -> Any:
        """The adjoint: zeros where no row counts."""
        xp = array_module(rows)
        out = (xp.empty if self._full else xp.zeros)((self.rows, *rows.shape[1:]), rows.dtype)
        out[self._at(rows)] = rows
        return out

    def _at(self, like: Any) -> Any:
        """The places, brought to the device once."""
        self._places = array_module(like).asarray(self._places)
        return self._places


def runs(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... for lengths[0] numbers, then first[1], ..."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(first - before, lengths) + np.arange(int(lengths.sum()))


class Way:
    """Where the rows of one routing go, of counts (E,) rows an expert on this rank, rank `index` of `size`, in `parts` parts.

    `known` holds for each rank an array (size, its experts) of rows by source and expert; `counting` fills in what this rank needs of them.
    With `most`, the rows an expert and source at most, nothing is filled in: blocks have one length, and say how many of their rows count.
    `traced` is the block of the model under which the bytes of a training step are noted.
    """

    def __init__(self, counts: tuple[int, ...], size: int, index: int, parts: int, most: int | None):
        self.size, self.index, self.most = size, index, most
        self.own = np.array(counts, np.int64)
        self.experts = [held(len(counts), size, r) for r in range(size)]
        self.known = [np.zeros((size, len(some)), np.int64) for some in self.experts]
        for some, of in zip(self.experts, self.known, strict=True):
            of[index] = self.own[some.start : some.stop]
        self.counting: Pending | None = None
        self.traced: int | None = None
        self._pieces = [[part(len(counts), size, r, parts, k) for r in range(size)] for k in range(parts)]
        self._sent: dict[int, Blocks] = {}
        self._received: dict[int, Blocks] = {}

    def settle(self) -> None:
        """Wait for the counts."""
        if self.counting:
            self.counting.wait()
            self.counting = None

    @property
    def parts(self) -> tuple[slice, ...]:
        """The parts as slices of the experts here."""
        return tuple(self._local(k, self.index) for k in range(len(self._pieces)))

    def counts(self, k: int) -> tuple[int, ...]:
        """Rows of each expert of part k here."""
        return tuple(self._here(k).sum(axis=0).tolist())

    def rows(self, k: int) -> np.ndarray:
        """(size, size): the rows of the blocks of part k from each source to each holder, as far as this rank knows them."""
        if self.most is None:
            columns = [of[:, self._local(k, r)].sum(axis=1) for r, of in enumerate(self.known)]
        else:
            columns = [np.full(self.size, len(piece) * (1 + self.most)) for piece in self._pieces[k]]
        return np.stack(columns, axis=1)

    def pack(self, rows: Any, k: int) -> Any:
        """rows (A, ...) sorted by expert -> the blocks of part k, by holder, then expert."""
        if len(self._pieces) > 1:
            xp = array_module(rows)
            rows = xp.concatenate([rows[self._span(piece)] for piece in self._pieces[k]])
        if self.most is None:
            return rows
        out = self._out(k).spread(rows)
        out.reshape(-1, 1 + self.most, self._width(out))[:, 0, 0] = array_module(out).asarray(self._counts_of(k))
        return out

    def unpack(self, blocks: Any, k: int) -> Any:
        """What came of part k, by source, then expert -> the rows that count, by expert, then source."""
        if self.most is not None:
            said = host_array(blocks.reshape(-1, 1 + self.most, self._width(blocks))[:, 0, 0])
            self._here(k)[...] = said.reshape(self.size, -1)
        return self._into(k).gather(blocks)

    def pack_back(self, rows: Any, k: int) -> Any:
        """The adjoint of `unpack`."""
        return self._into(k).spread(rows)

    def unpack_back(self, blocks: list[Any]) -> Any:
        """The adjoint of `pack` of all parts: rows (A, ...) sorted by expert."""
        found = blocks if self.most is None else [self._out(k).gather(b) for k, b in enumerate(blocks)]
        if len(found) == 1:
            return found[0]
        out = array_module(found[0]).empty((int(self.own.sum()), *found[0].shape[1:]), found[0].dtype)
        for k, rows in enumerate(found):
            at = 0
            for piece in self._pieces[k]:
                span = self._span(piece)
                out[span] = rows[at : at + span.stop - span.start]
                at += span.stop - span.start
        return out

    def _out(self, k: int) -> Blocks:
        """The blocks that this rank sends of part k."""
        if k not in self._sent:
            count = self._counts_of(k)
            self._sent[k] = Blocks(count, self._room(count), self.most is not None)
        return self._sent[k]

    def _into(self, k: int) -> Blocks:
        """The blocks that this rank receives of part k; those that count are wanted by expert, then source."""
        if k not in self._received:
            count = self._here(k)
            order = np.arange(count.size).reshape(count.shape).T.reshape(-1)
            flat = count.reshape(-1)
            self._received[k] = Blocks(flat, self._room(flat), self.most is not None, order)
        return self._received[k]

    def _room(self, count: np.ndarray) -> np.ndarray:
        return count if self.most is None else np.full(len(count), 1 + self.most)

    def _here(self, k: int) -> np.ndarray:
        """(size, the part's experts here): rows by source and expert."""
        return self.known[self.index][:, self._local(k, self.index)]

    def _counts_of(self, k: int) -> np.ndarray:
        """Rows of this rank for each expert of part k, by holder."""
        return np.concatenate([self.own[p.start : p.stop] for p in self._pieces[k]])

    def _local(self, k: int, rank: int) -> slice:
        piece, first = self._pieces[k][rank], self.experts[rank].start
        return slice(piece.start - first, piece.stop - first)

    def _span(self, piece: range) -> slice:
        """The rows of some consecutive experts among those of this rank."""
        first = int(self.own[: piece.start].sum())
        return slice(first, first + int(self.own[piece.start : piece.stop].sum()))

    @staticmethod
    def _width(rows: Any) -> int:
        return int(np.prod(rows.shape[1:]))
