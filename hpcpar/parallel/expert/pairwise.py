"""Pairwise messages: p - 1 of them each way, all begun at once, each with an event, a peer and bytes of its own.

    rank 1 of 4     receives from 2 3 0 . . .        a late rank holds up its own message alone; in rounds it would hold up all behind it
                    sends to      2 3 0 . . .        from the next rank on, so that not all ranks give to rank 0 first

What stays here is copied. Empty messages are not sent: both ends know the sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.comm.several import Messages
from hpcpar.comm.world import Group


def cut(flat: Any, sizes: Any) -> list[Any]:
    """Views of flat (sum(sizes),), one for each size."""
    stops = np.cumsum(sizes).tolist()
    return [flat[stop - size : stop] for stop, size in zip(stops, list(map(int, sizes)), strict=True)]


class Pairwise:
    """Pieces travel as one message each."""

    def __init__(self, group: Group):
        self._group = group

    def start(self, send: Any, receive: Any, sizes: np.ndarray, operation: str, back: bool) -> Pending:
        """See Carrier."""
        s, me = sizes.T if back else sizes, self._group.index
        return self._begin(cut(send, s[me]), cut(receive, s[:, me]), operation, send.nbytes)

    def count(self, counts: np.ndarray, known: list[np.ndarray]) -> Pending:
        """See Carrier."""
        given = cut(counts, [of.shape[1] for of in known])
        return self._begin(given, list(known[self._group.index]), "counts", counts.nbytes)

    def _begin(self, given: list[Any], got: list[Any], operation: str, nbytes: int) -> Pending:
        return self._group.several_start(self._messages(given, got, operation), operation, nbytes)

    def _messages(self, given: list[Any], got: list[Any], operation: str) -> Messages:
        group = self._group
        tag, axis = group.channel(), group.axis
        others = [(group.index + shift) % group.size for shift in range(1, group.size)]
        round_ = [group.receive_start(got[i], i, tag, operation, axis) for i in others if got[i].size]
        round_ += [group.send_start(given[i], i, tag, operation, axis) for i in others if given[i].size]
        got[group.index][...] = given[group.index]
        yield round_
