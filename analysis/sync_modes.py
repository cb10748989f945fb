"""What it costs to wait, and what it costs not to: bsp, ssp, asp and local on the same budget, with a worker that is three times slower.

    python analysis/sync_modes.py RUN RUN ... [--png F]           runs of one model and batch
    python analysis/sync_modes.py --make [--out DIR] [--steps N] [--png F]      four runs on two ranks, a minute on two cores

In the runs that are made worker 1 computes, then sleeps twice as long. A run's loss is the mean over the last tenth of its training
samples up to a point: after as many samples as the shortest run has, and after as many seconds of training as the fastest run took. Each
worker's steps count by its own clock; evaluations and checkpoints do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import runs
import script

import hpcpar.trace
from hpcpar.analyse.throughput import config
from hpcpar.analyse.workers import workers
from hpcpar.draw.saving import save
from hpcpar.errors import PlanError
from hpcpar.run.output import read_metrics

STEPS = 120
LATEST = 0.1  # of the samples or seconds so far
SLOW = 3.0
DESCRIPTION: dict[str, Any] = {
    "model": {"layers": 2, "width": 96, "heads": 4, "vocabulary": 256, "context": 64},
    "train": {"batch": 16, "learning_rate": 3e-3, "emulate": {"slow": {"1": SLOW}}},
    "data": {"held_out": 0.0},
    "run": {"threads": 1},
}
MODES: dict[str, dict[str, Any]] = {
    "bsp": {"mode": "bsp"},
    "ssp": {"mode": "ssp", "staleness": 3},
    "asp": {"mode": "asp"},
    "local": {"mode": "local", "every": 8},
}
STYLES = ("-", "--", ":", "-.")
POINTS = 60  # of a loss curve


def make(folder: Path, steps: int) -> list[Path]:
    """A run each of MODES."""
    return [runs.train(folder, name, {**DESCRIPTION, "plan": {"dp": 2, "sync": sync}}, steps) for name, sync in MODES.items()]


@dataclass
class Run:
    """A run's workers and its losses in the order in which they were known: seconds and samples so far, loss and labels of each."""

    name: str
    rows: list[dict[str, Any]]
    seconds: np.ndarray
    samples: np.ndarray
    losses: np.ndarray
    labels: np.ndarray

    def loss(self, along: np.ndarray, upto: float) -> float | None:
        """The mean loss of a label over the latest tenth up to a point; None where nothing was known in it."""
        there = (along > (1 - LATEST) * upto) & (along <= upto * (1 + 1e-9))
        return float(np.average(self.losses[there], weights=self.labels[there])) if self.labels[there].any() else None


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a run: mode, its workers, and its losses after the samples and seconds that all runs have."""
    every = [read(folder) for folder in folders]
    samples, seconds = min(run.samples[-1] for run in every), min(run.seconds[-1] for run in every)
    return [
        {
            "mode": run.name,
            "workers": run.rows,
            "seconds": float(run.seconds[-1]),
            "at_samples": run.loss(run.samples, samples),
            "at_seconds": run.loss(run.seconds, seconds),
            "samples_s": (float(samples), float(seconds)),
            "course": [(at, run.loss(run.seconds, at)) for at in np.linspace(0, run.seconds[-1], POINTS + 1)[1:].tolist()],
        }
        for run in every
    ]


def read(folder: Path) -> Run:
    """A run from its trace and its metrics; raises PlanError if the trace holds no description."""
    trace = hpcpar.trace.open(folder)
    described = config(trace)
    if described is None:
        raise PlanError(f"the trace of {folder} holds no description of its run")
    sync, lines = described.plan.sync, read_metrics(folder)
    if not lines:
        raise PlanError(f"{folder} has no steps in its metrics; workers of ssp and asp write theirs at the next evaluation, or at the end")
    more = {"ssp": f" {sync.staleness}", "local": f" {sync.every}"}.get(sync.mode, "")
    share = described.train.batch / len({line.get("rank") for line in lines})
    clock: dict[Any, float] = {}
    found = []
    for line in lines:
        who = line.get("rank")
        clock[who] = clock.get(who, 0.0) + line["seconds"]
        found.append((clock[who], line["loss"], line["tokens"]))
    seconds, losses, labels = np.array(sorted(found)).T
    return Run(sync.mode + more, workers(trace), seconds, share * np.arange(1, len(found) + 1), losses, labels)


def finding(found: Sequence[dict[str, Any]]) -> str:
    """How long the fastest worker of each mode waits, and who has the lowest loss after the same seconds."""
    waits = [f"{r['mode']} {100 * max(w['wait'] for w in r['workers']):.0f} %" for r in found]
    known = [r for r in found if r["at_seconds"] is not None]
    best = min(known, key=lambda r: r["at_seconds"])
    upto = best["samples_s"][1]
    return f"The fast worker waits: {', '.join(waits)} of its time; after {upto:.1f} s of each {best['mode']} has the lowest loss"


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a mode; of what workers have, a number each."""

    def each(r: dict[str, Any], key: str, form: str, factor: float = 1.0) -> str:
        return " ".join(script.number(w[key], form, factor) for w in r["workers"])

    samples, seconds = found[0]["samples_s"]
    head = ("mode", "steps/s by worker", "waits, %", "staleness, mean", "whole run, s")
    head = (*head, f"loss after {samples:,.0f} samples", f"after {seconds:.1f} s")
    lines = [
        [
            r["mode"],
            each(r, "steps_per_s", "{:.2f}"),
            each(r, "wait", "{:.0f}", 100.0),
            each(r, "staleness_mean", "{:.1f}"),
            f"{r['seconds']:.1f}",
            *(script.number(r[k], "{:.4f}") for k in ("at_samples", "at_seconds")),
        ]
        for r in found
    ]
    return script.markdown(head, lines)


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Left: the share of its time that each worker waits. Right: the loss against seconds; lines differ in stroke and are named."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    waits, losses = figure.subplots(1, 2, width_ratios=(2, 3))
    most = max(len(r["workers"]) for r in found)
    for i in range(most):
        x = [k + 0.8 * (i + 0.5) / most - 0.4 for k in range(len(found))]
        shares = [100 * r["workers"][i]["wait"] if i < len(r["workers"]) else 0.0 for r in found]
        colour = ("#bcd7f0", "#555555", "#f2a65a", "#ffffff")[i % 4]
        waits.bar(x, shares, width=0.8 / most, color=colour, edgecolor="black", label=f"worker {i}")
    waits.set_xticks(range(len(found)), [r["mode"] for r in found], fontsize=9)
    waits.set_ylabel("time that it waits, %")
    waits.set_ylim(0, 100)
    waits.legend(frameon=False, fontsize=8)
    for i, r in enumerate(found):
        known = [(s, loss) for s, loss in r["course"] if loss is not None]
        losses.plot(*zip(*known, strict=True), STYLES[i % 4], color="black", linewidth=1.0 + 0.5 * (i // 2), label=r["mode"])
    losses.set_xlabel("seconds of training")
    losses.set_ylabel("loss, nats")
    losses.legend(frameon=False, fontsize=8)
    losses.grid(color="#dddddd", linewidth=0.5)
    first, second = finding(found).split("; ")
    figure.suptitle(f"{first}\n{second}", fontsize=10)
    save(figure, path)


if __name__ == "__main__":
    script.main(script.this())
