"""Which all-reduce: by name, or ("auto") the cheapest by price on nominal figures, so that every rank and every run chooses the same.

On one node the tables were measured: on 2 ranks the ring is 5 % slower to 18 % faster than the better of the MPI's own two calls at 32 MiB.
Across nodes and on device memory they were not: there "auto" is the MPI's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hpcpar.collectives import doubling, ring, two_level
from hpcpar.collectives.check import check
from hpcpar.collectives.price import Link, price
from hpcpar.collectives.table import Table

ALGORITHMS = {**ring.ALGORITHMS, **doubling.ALGORITHMS, **two_level.ALGORITHMS}

MEMORY = Link(5e-6, 2e10)  # between two processes of a node
ADD_BYTES_PER_S = 2e10


@cache
def table_of(name: str, nodes: tuple[int, ...]) -> Table:
    """The checked table of an algorithm for ranks on these nodes; raises Broken if it were no all-reduce."""
    made = ALGORITHMS[name](nodes)
    check(made)
    return made


@cache
def chosen(name: str, nodes: tuple[int, ...], elements: int, itemsize: int, host: bool) -> Table | None:
    """The table to run for an array in host memory or (`host` false) in device memory; None is the MPI's own."""
    if name == "auto":
        if len(set(nodes)) > 1 or not host:
            return None
        every = [table_of(n, nodes) for n in ALGORITHMS]
        return min(every, key=lambda t: price(t, elements, itemsize, MEMORY, ADD_BYTES_PER_S))
    return None if name == "mpi" else table_of(name, nodes)


def normal(nodes: Sequence[int]) -> tuple[int, ...]:
    """The same placement with nodes numbered 0, 1, ... in the order in which they appear."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(node, len(seen)) for node in nodes)
