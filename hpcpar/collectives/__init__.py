"""Collectives as arithmetic: the adjoint of each, and the all-reduce as tables of rounds that are executed, priced and checked.

    choose -> table (ring, doubling, halving, two-level) -> check (a proof), price (seconds) and comm.rounds (a run)

Neither arrays nor MPI: the same tables serve the run, the simulator and the analysis.
"""

from __future__ import annotations

from hpcpar.collectives.adjoint import ADJOINT
from hpcpar.collectives.choose import ALGORITHMS, chosen, normal, table_of
from hpcpar.collectives.table import Table

__all__ = ["ADJOINT", "ALGORITHMS", "Table", "chosen", "normal", "table_of"]
