"""The ring: each rank talks to its neighbours alone, and sends 2 (N - 1) / N of the array, as little as any all-reduce can.

    0 -> 1 -> 2 -> 3 -> 0      N - 1 rounds in which chunk c collects its sum from rank c on, N - 1 in which the sum goes around

Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.collectives.table import Move, Table, joined


def phases(ranks: Sequence[int], first: int = 0) -> tuple[list[list[Move]], list[list[Move]]]:
    """The reduce-scatter and the all-gather of a ring of `ranks`, with as many chunks as ranks from chunk `first` on."""
    n = len(ranks)

    def around(reduce: bool) -> list[list[Move]]:
        rounds = []
        for k in range(n - 1):
            chunks = [first + (i - k + (not reduce)) % n for i in range(n)]
            rounds.append([Move(ranks[i], ranks[(i + 1) % n], c, c + 1, reduce) for i, c in enumerate(chunks)])
        return rounds

    return around(True), around(False)


def ring(nodes: Sequence[int]) -> Table:
    """The table of a ring in rank order; `nodes` (the node of each rank) counts only by its length."""
    n = len(nodes)
    return Table(n, n, joined(*phases(range(n))))


ALGORITHMS = {"ring": ring}
