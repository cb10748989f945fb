"""Two levels: inside a node first, then across nodes; a rank gets one message from each other node, with the rows of all of its ranks.

    node A   0  1  2        inside   what 0, 1 and 2 have for 3, and for 0, meets at 0; for 4 and 1 at 1; for 2 at 2
    node B   3  4           across   0 -> 3, 1 -> 4: one message with the rows of three ranks; 3 -> 0, 3 -> 2, 4 -> 1
                            back     the same ways backwards: across first, then inside

The rank of a node whose place there is that of the holder in its own, modulo the ranks of the node, passes rows on: nodes may have
different numbers of ranks. Between nodes go N - 1 messages to a rank instead of one from each of their ranks. A piece crosses each border
once, so that what crosses the network is what the other exchanges send there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.collectives import normal
from hpcpar.comm.pending import Pending
from hpcpar.comm.several import Messages
from hpcpar.comm.world import Group
from hpcpar.forms.ways import relay
from hpcpar.ops.array import array_module
from hpcpar.parallel.expert.pairwise import cut

Passing = Callable[[dict[int, dict[int, Any]]], None]


def joined(pieces: list[Any]) -> Any:
    """One flat array of some; none is copied where there is one."""
    return pieces[0] if len(pieces) == 1 else array_module(pieces[0]).concatenate(pieces)


class TwoLevel:
    """Pieces travel in messages of many, by way of the ranks of a node."""

    def __init__(self, group: Group):
        self._group, me = group, group.index
        nodes = normal([group.world.nodes[r] for r in group.ranks])
        members = [[r for r, node in enumerate(nodes) if node == n] for n in range(max(nodes) + 1)]
        self._mates = members[nodes[me]]  # the ranks of this node, this one among them
        self._far = [some for n, some in enumerate(members) if n != nodes[me]]
        self._handled = {m: [d for d in range(group.size) if relay(nodes, m, d) == m] for m in self._mates}  # by each of them, holders
        self._relays = [relay(nodes, some[0], me) for some in self._far]  # who passes on what comes from there, and what goes back
        self._near = set(self._mates)

    def start(self, send: Any, receive: Any, sizes: np.ndarray, operation: str, back: bool) -> Pending:
        """See Carrier."""
        rounds = self._back(send, receive, sizes, operation) if back else self._there(send, receive, sizes, operation)
        return self._group.several_start(rounds, operation, send.nbytes)

    def count(self, counts: np.ndarray, known: list[np.ndarray]) -> Pending:
        """See Carrier; what is passed on is noted."""
        sizes = np.tile([of.shape[1] for of in known], (self._group.size, 1))

        def passing(found: dict[int, dict[int, Any]]) -> None:
            for m, pieces in found.items():
                for d, piece in pieces.items():
                    known[d][m] = piece

        into = known[self._group.index].reshape(-1)
        return self._group.several_start(self._there(counts, into, sizes, "counts", passing), "counts", counts.nbytes)

    def _there(self, send: Any, receive: Any, sizes: np.ndarray, operation: str, passing: Passing | None = None) -> Messages:
        """From sources to holders: inside, then across."""
        me, mine = self._group.index, self._handled[self._group.index]
        tag, empty = self._group.channel(), lambda n: array_module(send).empty(int(n), send.dtype)
        own, places = cut(send, sizes[me]), cut(receive, sizes[:, me])
        last = [empty(sizes[some, me].sum()) for some in self._far]
        across = [self._receive(a, r, tag, operation, False) for a, r in zip(last, self._relays, strict=True) if a.size]
        met = {m: empty(sizes[m, mine].sum()) for m in self._mates if m != me}
        inside = [self._receive(a, m, tag, operation, True) for m, a in met.items() if a.size]
        for m in met:
            if (message := joined([own[d] for d in self._handled[m]])).size:
                inside.append(self._send(message, m, tag, operation, True))
        yield inside
        found = {m: dict(zip(mine, cut(a, sizes[m, mine]), strict=True)) for m, a in met.items()}
        found[me] = {d: own[d] for d in mine}
        if passing:
            passing(found)
        for d in mine:
            if d not in self._near and (message := joined([found[m][d] for m in self._mates])).size:
                across.append(self._send(message, d, tag, operation, False))
        yield across
        for m in self._mates:
            places[m][...] = found[m][me]
        for some, a in zip(self._far, last, strict=True):
            for source, piece in zip(some, cut(a, sizes[some, me]), strict=True):
                places[source][...] = piece

    def _back(self, send: Any, receive: Any, sizes: np.ndarray, operation: str) -> Messages:
        """From holders to sources, each step of `_there` backwards."""
        me, mine = self._group.index, self._handled[self._group.index]
        tag, empty = self._group.channel(), lambda n: array_module(send).empty(int(n), send.dtype)
        own, places = cut(send, sizes[:, me]), cut(receive, sizes[me])
        last = {m: empty(sizes[me, self._handled[m]].sum()) for m in self._mates if m != me}
        inside = [self._receive(a, m, tag, operation, True) for m, a in last.items() if a.size]
        met = {d: empty(sizes[self._mates, d].sum()) for d in mine if d not in self._near}
        across = [self._receive(a, d, tag, operation, False) for d, a in met.items() if a.size]
        for some, r in zip(self._far, self._relays, strict=True):
            if (message := joined([own[source] for source in some])).size:
                across.append(self._send(message, r, tag, operation, False))
        yield across
        found = {d: dict(zip(self._mates, cut(a, sizes[self._mates, d]), strict=True)) for d, a in met.items()}
        found[me] = {m: own[m] for m in self._mates}
        for m in last:
            if (message := joined([found[d][m] for d in mine])).size:
                inside.append(self._send(message, m, tag, operation, True))
        yield inside
        for d in mine:
            places[d][...] = found[d][me]
        for m, a in last.items():
            for d, piece in zip(self._handled[m], cut(a, sizes[me, self._handled[m]]), strict=True):
                places[d][...] = piece

    def _send(self, array: Any, to: int, tag: int, operation: str, inside: bool) -> Pending:
        return self._group.send_start(array, to, tag, operation, "node" if inside else self._group.axis)

    def _receive(self, array: Any, source: int, tag: int, operation: str, inside: bool) -> Pending:
        return self._group.receive_start(array, source, tag, operation, "node" if inside else self._group.axis)
