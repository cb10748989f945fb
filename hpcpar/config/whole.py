"""[data], [run], and the whole description of a run."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from hpcpar.config.description import Count, Description, Fraction, Positive
from hpcpar.config.model import Model
from hpcpar.config.plan import Plan
from hpcpar.config.train import Train


class Data(Description, frozen=True):
    """Where tokens come from: "stdlib", a text file or folder, or a token file (.bin; uint16, or uint32 for larger vocabularies)."""

    source: str = "stdlib"
    held_out: Fraction = 0.05
    ignore: tuple[Count, ...] = ()  # token ids whose prediction does not count (padding)


class Run(Description, frozen=True):
    """How the run is carried out."""

    device: Literal["cpu", "cuda"] = "cpu"
    trace: Literal["full", "off"] = "full"
    checkpoint_every: Count = 0  # steps; 0 = at the end only
    keep_checkpoints: Positive = 3
    threads: Count = 0  # BLAS threads a rank; 0 = the cores that the rank has
    gpu_aware: Literal["auto", "yes", "no"] = "auto"
    wait: Literal["auto", "spin", "yield"] = "auto"  # yield where ranks outnumber cores
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0  # the longest wait for one message
    watchdog_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # nothing moves for so long: say where every rank is, and end; 0 = never
    log_every: Positive = 10
    survive: Literal["none", "shrink"] = "none"  # a lost rank: end, or go on from the newest checkpoint on those that are left (ULFM)
    clock_every_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0  # between comparisons of the ranks' clocks, for the trace


class Config(Description, frozen=True):
    """Everything that decides what a run does."""

    model: Model = Model()
    plan: Plan = Plan()
    train: Train = Train()
    data: Data = Data()
    run: Run = Run()
