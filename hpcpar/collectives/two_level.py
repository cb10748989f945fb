"""Two levels: sum inside each node, then across nodes on several lanes, then back; little crosses the network.

    node A   0  1  2        inside   each segment of the array is summed by its lane's rank: 0, 1 (A) and 3, 4 (B)
    node B   3  4           across   a ring for each lane: 0 <-> 3 for segment 0, 1 <-> 4 for segment 1
                            back     the lane's rank gives the sum to the others of its node: 0 to 1 and 2, ...

There are as many lanes as the smallest node has ranks, so that all of its network ports work.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.collectives import ring
from hpcpar.collectives.table import Move, Table, joined, together


def two_level(nodes: Sequence[int]) -> Table:
    """The table for ranks of which rank r is on node nodes[r]."""
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    groups = list(members.values())
    lanes, width = min(map(len, groups)), len(groups)
    inside = [_exchange(g, lanes, width) for g in groups]
    across = [ring.phases([g[lane] for g in groups], lane * width) for lane in range(lanes)]
    rounds = joined(
        together(*(scatter for scatter, _ in inside)),
        together(*(scatter for scatter, _ in across)),
        together(*(gather for _, gather in across)),
        together(*(gather for _, gather in inside)),
    )
    return Table(len(nodes), lanes * width, rounds)


def _exchange(group: Sequence[int], lanes: int, width: int) -> tuple[list[list[Move]], list[list[Move]]]:
    """Every rank gives each lane's rank its segment (`width` chunks), and gets its sum back; a rank has one message a round each way."""
    n = len(group)
    scatter, gather = [], []
    for shift in range(1, n):
        pairs = [((lane - shift) % n, lane) for lane in range(lanes)]
        scatter.append([Move(group[i], group[lane], lane * width, (lane + 1) * width, True) for i, lane in pairs])
        gather.append([Move(group[lane], group[i], lane * width, (lane + 1) * width, False) for i, lane in pairs])
    return scatter, gather


ALGORITHMS = {"two-level": two_level}
