"""What a trace holds: the kinds of events and the types of its tables, for real and for predicted runs alike.

    trace.h5           the index: an external link to each rank's file, by its name relative to the folder
    trace.00003.h5     rank 3
      description      JSON         config, hosts, versions, machine, mpi
      sessions         SESSION      where each start of the run begins (a resumed run has several)
      events           EVENT        in the order of recording
      memory           MEMORY       bytes held, by kind
      metrics          METRIC       a value a step, by name
      pairs            PAIR         what this rank gave to each peer in the exchanges of experts, by step and block
      clock            CLOCK        what to add to this rank's clock to get the clock of the run, and by how much that may be wrong
      blocks           BLOCK        a row a flush: how far each table reached, and a checksum of what the flush wrote

The attributes of a file: schema, rank, ranks, crc (of these three, description and sessions), complete (whether it was closed).
A reader believes the rows that its blocks vouch for and no others. Schema 1 had no pairs, no blocks, no crc, no complete and no `bound_ns`.

Meaning of an event. F, I, W, B (I and W together), RECOMPUTE, UPDATE, EVALUATE: the rank computes. They are serial on a rank and may nest
(a RECOMPUTE inside a B): time belongs to the innermost. WAIT: the rank stands still until a message or a collective is complete; it is
serial too and may lie inside a compute event. SEND, RECEIVE and COLLECTIVE span from the post to the completion and may overlap everything;
a blocking call that lies inside a compute event is given a WAIT of the same span, since nothing else tells it from a hidden one.
The UPDATE of a parameter server is made by the owner's own thread and may overlap what the rank computes as a worker.

A PAIR is of the rank where a row starts and the one where it ends, however it travels: the bytes that the rank of the file gave to `peer`
in `calls` exchanges of a block and training step, padding included; rows of one key add up, and to itself means to its own experts. The
events of an exchange are one COLLECTIVE, or a SEND and a RECEIVE for each message (of two levels: axis NODE inside a node, EP across).

Enum values are never reused: a new name takes a new number at the end.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

VERSION = 2


class Kind(IntEnum):
    """What a rank did. No kind is 0: a row of zeros is not an event."""

    F = 1
    I = 2
    W = 3
    B = 4
    RECOMPUTE = 5
    UPDATE = 6
    SEND = 7
    RECEIVE = 8
    COLLECTIVE = 9
    WAIT = 10
    COPY = 11
    IO = 12
    CHECKPOINT = 13
    EVALUATE = 14


class Operation(IntEnum):
    """What was sent, reduced or waited for."""

    NONE = 0
    ACTIVATION = 1
    GRADIENT = 2
    ALLREDUCE = 3
    BROADCAST = 4
    REDUCE_SCATTER = 5
    ALLGATHER = 6
    ALLTOALL = 7
    BARRIER = 8
    TIED = 9
    NORM = 10
    LOSS = 11
    REDUCE = 12
    GATHER = 13
    SCATTER = 14
    TO_DEVICE = 15
    TO_HOST = 16
    AGREE = 17
    AVERAGE = 35
    PUSH = 40  # of a worker's gradient to the owner of a shard; of an UPDATE: the worker whose push it applied is its peer
    PULL = 41  # of a shard's weights; `version` is the number of updates in them
    CLOCK = 42  # of reading, or waiting for, other workers' clocks
    KEYS_VALUES = 55
    KEYS_VALUES_GRADIENT = 56
    TO_HEADS = 57
    TO_SEQUENCE = 58
    SOFTMAX = 50  # of the loss, over slices of the vocabulary
    SHARED = 51  # gradients that tensor-parallel ranks make together
    COUNTS = 60  # of rows for each expert, before they are sent
    DISPATCH = 61
    COMBINE = 62
    SCORES = 67  # of routers, of samples that ranks cut
    COMBINE_WEIGHTS = 68  # gradients of them, of experts that ranks cut
    CLOCK_POINT = 70  # of comparing this rank's clock with rank 0's; belongs to no step


class Axis(IntEnum):
    """The mesh axis along which the partners of a message lie."""

    NONE = 0
    PP = 1
    DP = 2
    CP = 3
    TP = 4
    EP = 5
    WORLD = 6
    TIED = 7
    NODE = 8
    EXPERT_DP = 60  # the replicas of a stage that hold the same experts


COMPUTE = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.RECOMPUTE, Kind.UPDATE, Kind.EVALUATE)
PIPELINE = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.RECOMPUTE)  # the compute that a pipeline's bubble is measured against

# start and end in ns; -1 where stage, microbatch, version or peer has no meaning; `sequence` is the row's number, from 1: a row with
# another one belongs to a block that was not written whole.
EVENT = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("kind", "u1"),
        ("operation", "u1"),
        ("axis", "u1"),
        ("stage", "i2"),
        ("microbatch", "i4"),
        ("version", "i4"),
        ("step", "i4"),
        ("peer", "i4"),
        ("bytes", "i8"),
        ("sequence", "i8"),
    ]
)
MEMORY = np.dtype([("time", "i8"), ("step", "i4"), ("kind", "S24"), ("bytes", "i8")])
METRIC = np.dtype([("step", "i4"), ("name", "S32"), ("value", "f8")])
PAIR = np.dtype([("step", "i4"), ("block", "i2"), ("operation", "u1"), ("axis", "u1"), ("peer", "i4"), ("calls", "i4"), ("bytes", "i8")])
CLOCK = np.dtype([("local_ns", "i8"), ("offset_ns", "i8"), ("session", "i4"), ("bound_ns", "i8")])
SESSION = np.dtype([("events", "i8"), ("memory", "i8")])  # the number of the first row
BLOCK = np.dtype([("events", "i8"), ("memory", "i8"), ("metrics", "i8"), ("pairs", "i8"), ("clock", "i8"), ("crc", "u4")])

TABLES = {
    "events": EVENT,
    "memory": MEMORY,
    "metrics": METRIC,
    "pairs": PAIR,
    "clock": CLOCK,
    "sessions": SESSION,
    "blocks": BLOCK,
}
VOUCHED = ("events", "memory", "metrics", "pairs", "clock")  # the tables that blocks count, in the order of the checksum
ENUMS = {"kind": Kind, "operation": Operation, "axis": Axis}


def stored(table: str) -> np.dtype[Any]:
    """The type of a table in the file: enums of events and pairs are HDF5 enums, so that `h5dump` shows names."""
    import h5py

    plain = TABLES[table]
    if table not in ("events", "pairs"):
        return plain
    named = {field: h5py.enum_dtype({e.name: e.value for e in enum}, basetype="u1") for field, enum in ENUMS.items()}
    return np.dtype([(name, named.get(name, plain[name])) for name in plain.names or ()])


def header_crc(version: int, rank: int, ranks: int, description: str, sessions: Sequence[tuple[int, int]] = ()) -> int:
    """The checksum of what a file says of itself; rank is -1 in the index, which has no sessions."""
    return zlib.crc32(f"{version} {rank} {ranks} {description} {list(sessions)}".encode())


def block_crc(block: Mapping[str, np.ndarray]) -> int:
    """The checksum of the rows that one flush writes to each table."""
    crc = 0
    for name in VOUCHED:
        crc = zlib.crc32(np.ascontiguousarray(block[name]).view(np.uint8).data, crc)
    return crc


def file_name(rank: int) -> str:
    """The name of a rank's file in the folder of a run."""
    return f"trace.{rank:05d}.h5"


INDEX = "trace.h5"
