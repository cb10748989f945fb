"""The all-reduce of one bucket: every algorithm against the MPI's own and against the memory, in turn in one run.

round 1   MPI blocking | MPI non-blocking | ring | doubling | ... | copy        a round's ratio is taken within the round, so that
round 2   MPI blocking | MPI non-blocking | ring | doubling | ... | copy        a machine that others use moves both sides of it
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcpar.collectives import ALGORITHMS, chosen, normal, table_of
from hpcpar.comm.world import World
from hpcpar.run import settings

BYTES = 1 << 25  # 32 MiB
OWN = ("mpi blocking", "mpi")


def measure(world: World, nbytes: int = BYTES, rounds: int = 15) -> dict[str, Any]:
    """Median seconds of the slowest rank for each way of summing `nbytes` of float32, in place; collective.

    `against_mpi` is the time of the MPI's own, the faster of its two calls, over that of the way; `copies` is its time in copies of the
    array that every rank makes at once.
    """
    settings.keep_memory()  # as a run does: what an algorithm needs beside the array is not new memory every time
    array = np.zeros(nbytes // 4, np.float32)
    other = np.ones_like(array)
    ways: dict[str, Callable[[], Any]] = {
        "mpi blocking": lambda: world.comm.Allreduce(MPI.IN_PLACE, array),
        **{name: lambda name=name: world.allreduce(array, algorithm=name) for name in ("mpi", *ALGORITHMS)},  # type: ignore[misc]
        "copy": lambda: np.copyto(other, array),
    }
    times = np.zeros((rounds + 1, len(ways)))
    for i in range(rounds + 1):  # the first warms
        for j, work in enumerate(ways.values()):
            world.comm.Barrier()
            start = time.perf_counter()
            work()
            times[i, j] = time.perf_counter() - start
    world.comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    by = {name: times[1:, j].tolist() for j, name in enumerate(ways)}
    own = [min(row) for row in zip(*(by[name] for name in OWN), strict=True)]
    return {
        "bytes": nbytes,
        "ranks": world.size,
        "auto": automatic(world, array),
        "copy_s": statistics.median(by["copy"]),
        "ways": {
            name: {
                "seconds": statistics.median(by[name]),
                "against_mpi": statistics.median(o / t for o, t in zip(own, by[name], strict=True)),
                "copies": statistics.median(t / c for t, c in zip(by[name], by["copy"], strict=True)),
            }
            for name in ways
            if name != "copy"
        },
    }


def automatic(world: World, array: np.ndarray) -> str:
    """The name of what "auto" chooses for this array on these ranks."""
    nodes = normal(world.nodes)
    table = chosen("auto", nodes, array.size, array.itemsize, True)
    return next((name for name in ALGORITHMS if table_of(name, nodes) is table), "mpi")
