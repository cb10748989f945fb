"""Profiles made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcpar.config import build, tables
from hpcpar.layer_times import Layer, LayerTimes, Machine


def made(seconds: Sequence[float], **tables_: Any) -> LayerTimes:
    """A profile of an embedding, blocks and a head with these seconds: a half in F, a quarter each in I and W; 1 MB of everything."""
    n = len(seconds)
    kinds: list[Any] = ["embedding", *["block"] * (n - 2), "head"]
    names = ["embedding", *(f"blocks.{i}" for i in range(n - 2)), "head"]
    layers = tuple(
        Layer(
            name=name,
            kind=kind,
            F_s=t / 2,
            I_s=t / 4,
            W_s=t / 4,
            output_bytes=0 if kind == "head" else 10**6,
            stash_bytes=10**6,
            parameter_bytes=10**6,
            optimizer_bytes=2 * 10**6,
        )
        for name, kind, t in zip(names, kinds, seconds, strict=True)
    )
    train = {"batch": 8, "clip": 0.0}
    config = build({"model": {"layers": n - 2, "tied": False}, "plan": {"microbatches": 4}, "train": train, **tables_})
    machine = Machine(host="here", device="cpu", threads=1, copy_bytes_per_s=1e9)
    return LayerTimes(samples=2, precision="float32", rounds=3, machine=machine, layers=layers, config=tables(config))
