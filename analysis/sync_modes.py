"""What it costs to wait, and what it costs not to: bsp, ssp, asp and local on the same budget, with a worker that is three times slower.

    python analysis/sync_modes.py DIR...        the folders of runs of one model and batch

Four runs to compare, each in about a minute on two cores; worker 1 computes, then sleeps twice as long:

    run() { mpirun -n 2 hpcpar train jobs/first.toml --out runs/$1 --set plan.pp=1 --set plan.microbatches=1 --set train.steps=150 \\
            --set train.eval_every=0 --set run.checkpoint_every=0 --set 'train.emulate={slow = {1 = 3.0}}' --set "plan.sync={$2}"; }
    run bsp 'mode = "bsp"'; run ssp 'mode = "ssp", staleness = 3'; run asp 'mode = "asp"'; run local 'mode = "local", every = 8'
    python analysis/sync_modes.py runs/bsp runs/ssp runs/asp runs/local

A run's loss is the mean over the last tenth of its training samples up to a point: after as many samples as the shortest run has, and after
as many seconds of training as the fastest run took. Each worker's steps count by its own clock; evaluations and checkpoints do not.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import hpcpar.trace
from hpcpar.analyse.throughput import config
from hpcpar.analyse.workers import workers
from hpcpar.errors import PlanError
from hpcpar.run.output import read_metrics

LATEST = 0.1  # of the samples or seconds so far


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


def main() -> None:
    """Read the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR")
    try:
        report([read(folder) for folder in parser.parse_args().runs])
    except (PlanError, OSError) as e:
        parser.exit(2, f"sync_modes: {e}\n")


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


def report(runs: list[Run]) -> None:
    """Print the table."""
    samples, seconds = min(run.samples[-1] for run in runs), min(run.seconds[-1] for run in runs)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("mode", "steps/s\nby worker", "waits\n%", "staleness\nmean", "whole\nrun, s", "loss at\nsamples", "loss at\nseconds"):
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=True)
    for run in runs:

        def each(key: str, form: str, factor: float = 1.0, run: Run = run) -> str:
            return " ".join("-" if row[key] is None else format(factor * row[key], form) for row in run.rows)

        table.add_row(
            run.name,
            each("steps_per_s", ".2f"),
            each("wait", ".0f", 100.0),
            each("staleness_mean", ".1f"),
            f"{run.seconds[-1]:.1f}",
            *("-" if x is None else f"{x:.4f}" for x in (run.loss(run.samples, samples), run.loss(run.seconds, seconds))),
        )
    console = Console(highlight=False, markup=False)
    console.print(f"loss in nats after {samples:,.0f} samples and after {seconds:.1f} s")
    console.print(table)


if __name__ == "__main__":
    main()
