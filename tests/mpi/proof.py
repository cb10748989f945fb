"""The proof: a parallel run against the one-process model, by name: losses, every gradient, the norm, the weights after several steps."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcpar import config
from hpcpar.analyse.difference import relative, rms
from hpcpar.comm.world import World
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

STEPS = 5
GPT = {"layers": 5, "width": 24, "heads": 3, "context": 13, "vocabulary": 256}
LLAMA = {**GPT, "heads": 4, "kv_heads": 2, "norm": "rms", "position": "rotary", "mlp": "swiglu", "bias": False}
STYLES = {
    "gpt-tied": GPT,
    "gpt-untied": {**GPT, "tied": False},
    "gpt-dropout": {**GPT, "dropout": 0.2},
    "llama-tied": LLAMA,
    "llama-untied": {**LLAMA, "tied": False},
    "deep-tied": {**GPT, "layers": 9},
    "deep-untied": {**GPT, "layers": 8, "tied": False},
    "deep-llama": {**LLAMA, "layers": 8},
    "deepest-tied": {**GPT, "layers": 17},
    "deepest-untied": {**GPT, "layers": 16, "tied": False},
}
# For ranks that cut a layer: 6 heads, an inner width and a vocabulary that 2, 3 and 4 do not all divide.
CUT = {"layers": 3, "heads": 6, "mlp_width": 50, "vocabulary": 259}
STYLES |= {
    "cut-gpt-tied": {**GPT, **CUT},
    "cut-gpt-untied": {**GPT, **CUT, "tied": False},
    "cut-gpt-dropout": {**GPT, **CUT, "dropout": 0.2},
    "cut-gpt-shared": {**GPT, **CUT, "kv_heads": 1},  # grouped queries with biases: fewer key/value heads than ranks
    "cut-llama-tied": {**LLAMA, **CUT, "kv_heads": 2},
    "cut-llama-untied": {**LLAMA, **CUT, "kv_heads": 3, "tied": False},
    "cut-llama-shared": {**LLAMA, **CUT, "kv_heads": 1, "dropout": 0.1},
    "even": {**GPT, "layers": 2, "width": 32, "heads": 4, "context": 16},
    "cut-deep": {**GPT, **CUT, "layers": 8},
    "cut-deep-llama": {**LLAMA, **CUT, "layers": 8, "kv_heads": 1},
}
MASKED = [ord("e"), ord(" "), ord("r")]  # labels that do not count, so that microbatches and ranks have unequal numbers


@functools.cache
def corpus() -> str:
    """A text that every rank makes for itself, the same everywhere."""
    words = ["pipeline", "stage", "bubble", "eeee", "reduce", "a", "micro", "batch", "tree   r", "rank"]
    words.append("naïve Größe")  # bytes of both halves of a vocabulary that ranks cut
    draw = np.random.Generator(np.random.Philox(7)).integers(0, len(words), 4000)
    path = Path(tempfile.gettempdir()) / f"hpcpar-proof-{MPI.COMM_WORLD.Get_rank()}-{MPI.COMM_WORLD.bcast(_token())}.txt"
    path.write_text(" ".join(words[i] for i in draw), encoding="utf-8")
    return str(path)


def _token() -> str:
    return next(tempfile._get_candidate_names())  # type: ignore[attr-defined]


def describe(style: str, plan: dict[str, Any], train: dict[str, Any] | None = None) -> config.Config:
    """A configuration of a style under a plan."""
    t = {"steps": STEPS, "batch": 24, "precision": "float64", "clip": 0.5, **(train or {})}
    data = {"source": corpus(), "ignore": MASKED}
    return config.build({"model": STYLES[style], "plan": plan, "train": t, "data": data, "run": {"threads": 1}})


@dataclass
class Ran:
    """What a run came to."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    auxiliary: list[float] = field(default_factory=list)
    gradients: list[dict[int, dict[str, np.ndarray]]] = field(default_factory=list)  # a step: {stage: {name: array}}
    weights: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    slices: dict[str, tuple[slice, ...]] = field(default_factory=dict)  # what this rank holds of each parameter

    def everywhere(self, step: int) -> dict[str, np.ndarray]:
        """The gradients of a serial run."""
        return self.gradients[step][0]


def run(cfg: config.Config, world: World) -> Ran:
    """Train and keep what is compared."""
    session = Session(cfg, world, Recorder())
    out, trainer = Ran(), session.trainer

    def watch(found: dict[int, dict[str, Any]]) -> None:
        out.gradients.append({s: {n: host(g) for n, g in named.items()} for s, named in found.items()})

    trainer.watch = watch
    for result in trainer.until(cfg.train.steps):
        out.losses.append(result.loss)
        out.norms.append(result.grad_norm)
        if cfg.model.moe:
            out.auxiliary.append(result.auxiliary)
    out.slices = {n: p.slices for part in trainer.parts.values() for n, p in part.map.parameters.items()}
    out.weights = {s: {n: host(w) for n, w in part.weights_by_name().items()} for s, part in trainer.parts.items()}
    return out


def host(view: Any) -> np.ndarray:
    """A copy in host memory."""
    return view.copy() if isinstance(view, np.ndarray) else view.get()


@functools.cache
def serial(style: str, plan: tuple[tuple[str, Any], ...], train: tuple[tuple[str, Any], ...] = ()) -> Ran:
    """The one-process run; every rank makes it for itself."""
    world = World(MPI.COMM_SELF.Dup())
    try:
        return run(describe(style, dict(plan), dict(train)), world)
    finally:
        world.free()


def compare(got: Ran, want: Ran, exact: bool, tolerance: float = 1e-12) -> None:
    """Assert that this rank's part of a run equals the serial run: bit for bit, or to the tolerance by DESIGN's measure."""
    weights = want.weights[0]
    assert len(got.losses) == len(want.losses) > 0
    for step in range(len(want.losses)):
        _same(f"loss of step {step + 1}", got.losses[step], want.losses[step], exact, tolerance)
        _same(f"norm of step {step + 1}", got.norms[step], want.norms[step], exact, tolerance)
        if want.auxiliary:
            _same(f"auxiliary loss of step {step + 1}", got.auxiliary[step], want.auxiliary[step], exact, tolerance)
        every = want.everywhere(step)
        scale = rms(every)
        for named in got.gradients[step].values():
            assert named
            for name, g in named.items():
                _same(f"gradient of {name}, step {step + 1}", g, every[name][got.slices.get(name, ())], exact, tolerance, scale)
    scale = rms(weights)
    for named in got.weights.values():
        for name, w in named.items():
            _same(f"weights of {name}", w, weights[name][got.slices.get(name, ())], exact, tolerance, scale)


def _same(what: str, a: Any, b: Any, exact: bool, tolerance: float, floor: float = 0.0) -> None:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if exact:
        assert np.array_equal(a, b), f"{what}: largest difference {np.abs(a - b).max():.3g}, must be 0"
    else:
        difference = relative(a, b, floor)
        assert difference <= tolerance, f"{what}: relative difference {difference:.3g} > {tolerance}"
