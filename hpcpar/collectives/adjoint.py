"""Collectives come in pairs: the backward of one is the other, <A x, y> = <x, A' y>."""

from __future__ import annotations

ADJOINT = {
    "copy": "allreduce",  # one array used by every rank: its gradients add up
    "allreduce": "copy",
    "allgather": "reduce_scatter",
    "reduce_scatter": "allgather",
    "alltoall": "alltoall",  # with the counts exchanged
    "send": "receive",
    "receive": "send",
    "broadcast": "reduce",
    "reduce": "broadcast",
    "gather": "scatter",
    "scatter": "gather",
}
