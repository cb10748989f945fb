"""[plan]: how model and batch are cut over ranks, and how the ranks are kept together."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from hpcpar.config.description import Count, Description, Fraction, Positive


class Sync(Description, frozen=True):
    """How data-parallel replicas are kept together.

    bsp: one sum of gradients a step. local: every replica steps alone, and every `every` steps their weights are averaged. ssp, asp: a
    sharded parameter server; a worker is at most `staleness` clocks ahead of the slowest, or as far as it gets.
    """

    mode: Literal["bsp", "local", "ssp", "asp"] = "bsp"
    bucket_mb: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    first_bucket_mb: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    algorithm: Literal["auto", "mpi", "ring", "doubling", "halving", "two-level"] = "auto"  # of the all-reduce of a bucket
    progress: Literal["calls", "thread"] = "calls"  # who lets MPI move while a rank computes: calls between operations, or a thread
    compress: Literal["none", "float16", "top-k", "powersgd"] = "none"  # what of a bucket's gradients is sent (bsp)
    keep: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01  # top-k: the share of elements that is sent
    rank: Positive = 4  # powersgd: columns of the two factors
    every: Positive = 1  # local: steps between averages
    outer_rate: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # local: of the outer step; 1 with no momentum is the plain average
    outer_momentum: Fraction = 0.0  # local: Nesterov's, as in DiLoCo
    staleness: Count = 0  # ssp: clocks


class Offload(Description, frozen=True):
    """What leaves the device while it is not in use, and how much of the device the run may take."""

    parameters: bool = False
    optimizer: bool = False
    activations: bool = False
    device_mb: Annotated[float, msgspec.Meta(gt=0)] = 1024.0


class Ways(Description, frozen=True):
    """How rows go to the experts of other ranks.

    counts: "exchanged" first, and then as many rows as there are; "fixed": capacity rows an expert, without that exchange.
    exchange: the MPI's own all-to-all, pairwise messages, or two levels: inside a node, then across.
    overlap: chunks of a microbatch; the exchange of the next one goes on while the experts compute this one.
    """

    counts: Literal["exchanged", "fixed"] = "exchanged"
    exchange: Literal["mpi", "pairwise", "two-level"] = "mpi"
    overlap: Positive = 1


class Plan(Description, frozen=True):
    """How the model and the batch are cut over ranks = dp x pp x cp x tp."""

    dp: Positive = 1
    pp: Positive = 1
    cp: Positive = 1
    tp: Positive = 1
    ep: Positive = 1
    order: tuple[str, ...] = ("pp", "dp", "cp", "tp")  # slowest first
    schedule: str = "1f1b"
    microbatches: Positive = 1
    accumulate: Positive = 1
    chunks: Positive = 1
    zero: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    sequence: bool = False
    context: Literal["zig-zag", "ring", "gather", "ulysses"] = "zig-zag"  # how cp ranks see each other's keys; zig-zag is an even ring
    recompute: Literal["none", "full"] = "none"
    stages: Literal["even"] | tuple[Count, ...] = "even"
    replicas: tuple[Positive, ...] = ()
    updates: Literal["lazy", "eager"] = "lazy"
    sync: Sync = Sync()
    experts: Ways = Ways()
    offload: Offload | None = None

    @property
    def ranks(self) -> int:
        """The number of MPI ranks that the plan needs."""
        inside = self.cp * self.tp
        return sum(self.replicas) * inside if self.replicas else self.dp * self.pp * inside
