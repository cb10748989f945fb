"""The rates of a machine of several ranks: arithmetic alone and together, messages inside a node and across nodes.

    inside   rank 0 <-> the second rank of its node        across   rank 0 <-> the first rank of another node
    together every rank of the two nodes has a partner     (of one node, where there is no other)

A message is timed as half of there and back, so that no clock of another node is read.
"""

from __future__ import annotations

import platform
import statistics
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcpar.comm import device
from hpcpar.comm.world import World
from hpcpar.machine import Compute, Link, Machine, Network
from hpcpar.measure.rates import matrix_rate, memory_rate

SIZES = tuple(8 << k for k in range(0, 22, 3))  # 8 bytes to 16 MiB
ROUND_TRIPS_S = 0.1  # for one size
MOST = 200  # round trips of one size
TAG = 7


def measure(world: World, threads: int, on: str = "cpu", seconds: float = 0.5) -> Machine | None:
    """The machine as these ranks see it; collective, None on all ranks but the first. `seconds` is for each rate."""
    xp = _module(on, world)
    alone = [0.0, 0.0, 0.0]
    if world.rank == 0:
        alone = [matrix_rate("float32", seconds, xp), matrix_rate("float64", seconds, xp), memory_rate(seconds, xp)]
    world.set_waiting("yield")
    world.barrier()
    together = np.array([matrix_rate("float32", seconds, xp)])
    world.set_waiting("auto")
    world.comm.Allreduce(MPI.IN_PLACE, together, MPI.MIN)
    inside, across = pairs(world.nodes)
    links = [_link(world, pair, every, xp) for pair, every in (inside, across)]
    if world.rank:
        return None
    return Machine(
        name=platform.node(),
        device=on,
        nodes=len(set(world.nodes)),
        ranks=world.size,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        mpi=" ".join(MPI.Get_library_version().strip("\0").split("\n")[0].split()),
        compute=Compute(
            threads=threads,
            float32_flops_per_s=alone[0],
            float64_flops_per_s=alone[1],
            together_float32_flops_per_s=float(together[0]),
            copy_bytes_per_s=alone[2],
        ),
        network=Network(inside=links[0], across=links[1]),
    )


Pair = tuple[int, int]


def pairs(nodes: list[int]) -> tuple[tuple[Pair | None, list[Pair]], tuple[Pair | None, list[Pair]]]:
    """((a pair inside a node, all such pairs at once), (a pair across, all at once)) for each rank's node; None where there is none.

    Inside, neighbours of every node; across, rank i of the first node with rank i of the second.
    """
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    groups = list(by_node.values())
    inside = [(g[i], g[i + 1]) for g in groups for i in range(0, len(g) - 1, 2)]
    across = list(zip(groups[0], groups[1], strict=False)) if len(groups) > 1 else []
    return (inside[0] if inside else None, inside), (across[0] if across else None, across)


def _link(world: World, pair: Pair | None, every: list[Pair], xp: Any) -> Link | None:
    """The link of a pair, alone and with all others; collective."""
    if pair is None:
        return None
    alone = [_one_way_s(world, [pair], size, xp) for size in SIZES]
    together = [_one_way_s(world, every, size, xp) for size in SIZES[-2:]]
    return Link(
        latency_s=alone[0],
        bytes_per_s=_slope(SIZES[-2:], alone[-2:]),
        together_bytes_per_s=_slope(SIZES[-2:], together),
        sizes=SIZES,
        seconds=tuple(alone),
    )


def _slope(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Bytes/s between two sizes; of the larger one alone where the clock saw no difference."""
    (a, b), (s, t) = sizes, seconds
    return (b - a) / (t - s) if t > s else b / t


def _one_way_s(world: World, every: list[Pair], size: int, xp: Any) -> float:
    """Median seconds of a message of `size` bytes, the slowest pair's; collective, ranks without a partner wait."""
    mine = next((p for p in every if world.rank in p), None)
    array = xp.zeros(size, dtype="uint8")
    found = np.zeros(1)
    world.barrier()
    if mine:
        lead, other = mine[0] == world.rank, mine[1 - mine.index(world.rank)]
        _trip(world, array, other, lead)  # warms
        start = time.perf_counter()
        _trip(world, array, other, lead)
        once = np.array([time.perf_counter() - start])
        many = np.array([max(3, min(MOST, int(ROUND_TRIPS_S / max(once[0], 1e-9))))])
        if lead:
            world.comm.Send(many, other, TAG)
        else:
            world.comm.Recv(many, other, TAG)
        times = []
        for _ in range(int(many[0])):
            start = time.perf_counter()
            _trip(world, array, other, lead)
            times.append(time.perf_counter() - start)
        found[0] = statistics.median(times) / 2
    world.comm.Allreduce(MPI.IN_PLACE, found, MPI.MAX)
    return float(found[0])


def _trip(world: World, array: Any, other: int, lead: bool) -> None:
    """There and back."""
    for sends in (lead, not lead):
        if sends:
            world.comm.Send(device.send_buffer(array, world.direct), other, TAG)
        else:
            buffer, finish = device.receive_buffer(array, world.direct)
            world.comm.Recv(buffer, other, TAG)
            finish()


def _module(on: str, world: World) -> Any:
    if on == "cpu":
        return np
    device.select_device(world.node_rank)
    import cupy

    verdict = world.share(device.gpu_aware("auto") if world.rank == 0 else None)
    world.direct = verdict.direct
    return cupy
