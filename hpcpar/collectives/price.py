"""What a table costs on a network: latency and bytes for each message, an addition for each element that is reduced.

    rank 0   |--- round 1 ---|--- round 2 ---|          a rank's round ends when its messages are through; a message begins
    rank 1      |--- round 1 ---|--- round 2 ---|       when both of its ranks have begun the round

A rank sends to one rank and receives from one at a time, both at once (Hockney's alpha-beta model with full duplex).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.collectives.table import Move, Table


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes latency_s + n / bytes_per_s."""

    latency_s: float
    bytes_per_s: float

    def message_s(self, nbytes: float) -> float:
        """Seconds of one message."""
        return self.latency_s + nbytes / self.bytes_per_s


def price(
    table: Table,
    elements: int,
    itemsize: int,
    network: Link,
    add_bytes_per_s: float = float("inf"),
    nodes: Sequence[int] = (),
    inside: Link | None = None,
) -> float:
    """Seconds of an all-reduce of `elements` when all ranks start together; messages within one of `nodes` go over `inside`.

    `add_bytes_per_s` is the rate at which received bytes are added.
    """
    ready = [0.0] * table.ranks

    def message_s(m: Move, nbytes: int) -> float:
        near = inside is not None and nodes and nodes[m.source] == nodes[m.destination]
        return (inside if near and inside else network).message_s(nbytes)

    for moves in table.rounds:
        out, into, adds, begin = ({r: 0.0 for m in moves for r in m[:2]} for _ in range(4))
        for m in moves:
            start, stop = table.span(m, elements)
            if start == stop:
                continue
            nbytes = (stop - start) * itemsize
            seconds = message_s(m, nbytes)
            out[m.source] += seconds
            into[m.destination] += seconds
            adds[m.destination] += nbytes / add_bytes_per_s if m.reduce else 0.0
            both = max(ready[m.source], ready[m.destination])
            for rank in m[:2]:
                begin[rank] = max(begin[rank], both)
        for rank in out:
            if out[rank] or into[rank]:
                ready[rank] = begin[rank] + max(out[rank], into[rank]) + adds[rank]
    return max(ready)
