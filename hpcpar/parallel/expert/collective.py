"""The MPI's own all-to-all with a count for each pair: one event with the bytes of all that this rank gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group


class Collective:
    """Pieces travel by one non-blocking collective of the group."""

    def __init__(self, group: Group):
        self._group = group

    def start(self, send: Any, receive: Any, sizes: np.ndarray, operation: str, back: bool) -> Pending:
        """See Carrier."""
        s = sizes.T if back else sizes
        me = self._group.index
        return self._group.alltoall_start(send, s[me].tolist(), receive, s[:, me].tolist(), operation)

    def count(self, counts: np.ndarray, known: list[np.ndarray]) -> Pending:
        """See Carrier."""
        mine = known[self._group.index]
        lengths = [of.shape[1] for of in known]
        return self._group.alltoall_start(counts, lengths, mine.reshape(-1), [mine.shape[1]] * self._group.size, "counts")
