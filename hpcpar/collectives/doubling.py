"""Recursive doubling, and recursive halving then doubling: log2 N rounds where a ring needs N - 1.

    doubling   0 <-> 1   2 <-> 3       halving   0 <-> 2   1 <-> 3   half of the array, the receiver adds its half
               0 <-> 2   1 <-> 3                 0 <-> 1   2 <-> 3   a quarter; then the same pairs backwards, sums overwrite

Doubling sends the whole array in each round: it is for short arrays. Ranks beyond a power of two give their array to a partner first and
get the sum at the end. Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.collectives.table import Move, Round, Table, joined, powers


def doubling(nodes: Sequence[int]) -> Table:
    """The table of recursive doubling."""
    n, core = len(nodes), _core(len(nodes))
    rounds = [[Move(i, i ^ step, 0, 1, True) for i in range(core)] for step in powers(core)]
    return Table(n, 1, _folded(n, core, 1, rounds))


def halving(nodes: Sequence[int]) -> Table:
    """The table of recursive halving (a reduce-scatter) and doubling (an all-gather): Rabenseifner's algorithm."""
    n, core = len(nodes), _core(len(nodes))
    scatter, gather = [], []
    for step in powers(core):  # the ranks that differ in this bit hold neighbouring blocks of `step` chunks
        gather.append([_block(i, i ^ step, i // step, step, False) for i in range(core)])
        scatter.append([_block(i, i ^ step, (i ^ step) // step, step, True) for i in range(core)])
    return Table(n, core, _folded(n, core, core, [*reversed(scatter), *gather]))


def _block(source: int, destination: int, index: int, size: int, reduce: bool) -> Move:
    return Move(source, destination, index * size, (index + 1) * size, reduce)


def _core(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def _folded(n: int, core: int, chunks: int, rounds: list[list[Move]]) -> tuple[Round, ...]:
    """The rounds of `core` ranks, around them the rounds in which the other ranks give their array and get the sum."""
    rest = range(core, n)
    give = [[Move(i, i - core, 0, chunks, True) for i in rest]] if rest else []
    take = [[Move(i - core, i, 0, chunks, False) for i in rest]] if rest else []
    return joined(give, rounds, take)


ALGORITHMS = {"doubling": doubling, "halving": halving}
