"""Why stages should not hold equally many blocks: a model with a costly head, cut evenly and by the partition.

    python analysis/uneven.py [--out DIR]        about a minute on two cores

The model is profiled on this machine and partitioned without replicas. Every cut is then timed three times: by the clock of 1F1B with the
profile's times, by ranks that sleep those times while all messages, sums and updates are real, and, on two ranks, by plain training.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hpcpar import config
from hpcpar.layer_times import LayerTimes
from hpcpar.measure.profile import profile
from hpcpar.nn.describe import cut_stages
from hpcpar.plan.costs import Layers, Level
from hpcpar.plan.partition import partition
from hpcpar.plan.predict import stage_times, step_timing
from hpcpar.run.output import read_metrics

MODEL = {"layers": 6, "width": 128, "heads": 4, "vocabulary": 4096, "context": 64, "tied": False}
DESCRIPTION: dict[str, Any] = {
    "model": MODEL,
    "plan": {"schedule": "1f1b", "microbatches": 8},
    "train": {"batch": 32, "steps": 12},
    "data": {"held_out": 0.0},
    "run": {"threads": 1},
}
RANKS = (2, 4)
MEASURED_RANKS = 2  # as many as there are cores
WARM_UP = 2  # steps


def main() -> None:
    """Profile, partition, run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the profile and the runs here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        described = config.build(DESCRIPTION)
        times = profile(described)
        times.write(folder / "profile.toml")
        config.save(described, folder / "run.toml")
        rows = [row(folder, described, times, ranks, name, blocks) for ranks in RANKS for name, blocks in cuts(described, times, ranks)]
    report(times, rows)


def cuts(described: config.Config, times: LayerTimes, ranks: int) -> list[tuple[str, list[int]]]:
    """(name, transformer blocks a stage) of the even cut and of the partition."""
    even = [sum(layer.kind == "block" for layer in stage) for stage in cut_stages(described.model, "even", ranks)]
    level = Level(ranks, times.machine.copy_bytes_per_s)
    return [("even", even), ("partition", partition(Layers.of(times), (level,), straight=True).blocks)]


def row(folder: Path, described: config.Config, times: LayerTimes, ranks: int, name: str, blocks: list[int]) -> dict[str, Any]:
    """The three times of a cut, s a step."""
    by_stage = stage_times(times, blocks)
    stages = [sum(t) for t in zip(by_stage.F, by_stage.I, by_stage.W, strict=True)]  # type: ignore[arg-type]
    plan = [f"plan.pp={ranks}", f"plan.stages={blocks}"]
    asleep = f'train.emulate={{profile = "{(folder / "profile.toml").resolve()}"}}'
    return {
        "ranks": ranks,
        "cut": name,
        "blocks": blocks,
        "slowest_s": max(stages),
        "predicted_s": step_timing(times, described, blocks).makespan,
        "emulated_s": trained(folder, f"emulated-{ranks}-{name}", ranks, [*plan, asleep]),
        "measured_s": trained(folder, f"measured-{ranks}-{name}", ranks, plan) if ranks == MEASURED_RANKS else None,
    }


def trained(folder: Path, name: str, ranks: int, settings: list[str]) -> float:
    """The median step of a run, s, without its first steps."""
    beside = Path(sys.executable).with_name("mpirun")
    launcher = str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"
    out = folder / name
    shutil.rmtree(out, ignore_errors=True)
    options = [word for s in settings for word in ("--set", s)]
    command = [launcher, "-n", str(ranks), sys.executable, "-m", "hpcpar", "train", str(folder / "run.toml"), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return statistics.median(line["seconds"] for line in read_metrics(out)[WARM_UP:])


def report(times: LayerTimes, rows: list[dict[str, Any]]) -> None:
    """Print the table: ms, and what the partition gains on the even cut above it."""
    console = Console(highlight=False, markup=False)
    block = statistics.mean(layer.compute_s for layer in times.layers[1:-1])
    console.print(
        f"{len(times.layers) - 2} blocks of {1e3 * block:.2f} ms a microbatch (F + I + W); "
        f"the embedding is {times.layers[0].compute_s / block:.2f} blocks, the head {times.layers[-1].compute_s / block:.2f}; "
        f"1F1B, {DESCRIPTION['plan']['microbatches']} microbatches; ms a step"
    )
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("ranks", "cut", "blocks", "slowest", "predicted", "emulated", "measured"):
        table.add_column(name, justify="left" if name in ("cut", "blocks") else "right", no_wrap=True)
    columns = ("slowest_s", "predicted_s", "emulated_s", "measured_s")
    for i, r in enumerate(rows):
        table.add_row(str(r["ranks"]), r["cut"], str(r["blocks"]), *("-" if r[c] is None else f"{1e3 * r[c]:.1f}" for c in columns))
        if i % 2:
            gains = ["-" if r[c] is None else f"{rows[i - 1][c] / r[c]:.2f} x" for c in columns]
            table.add_row("", "faster by", "", *gains, end_section=i + 1 < len(rows))
    console.print(table)


if __name__ == "__main__":
    main()
