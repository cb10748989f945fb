"""What is saved on the wire, and what it costs in loss: steps in bulk, whole and compressed, local SGD and DiLoCo, on one budget of tokens.

    python analysis/compression.py [--out DIR] [--steps N]        two ranks, some minutes on two cores
    python analysis/compression.py RUN RUN ...                    the same table of runs that are there

Bytes are counted from the traces: what a rank sends of its gradients or weights along dp in a step, as a ring would: 2 (N - 1) / N of an
all-reduced array, (N - 1) / N of one that is gathered or exchanged.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from hpcpar import config, trace
from hpcpar.trace.schema import Axis, Kind, Operation

RANKS = 2
DESCRIPTION: dict[str, Any] = {
    "model": {"layers": 3, "width": 96, "heads": 4, "vocabulary": 256, "context": 64},
    "plan": {"dp": RANKS},
    "train": {"batch": 16, "steps": 320, "learning_rate": 3e-3, "warmup": 20},
    "run": {"threads": 1},
}
DILOCO = {"mode": "local", "every": 16, "outer_rate": 0.7, "outer_momentum": 0.9}
PLANS: dict[str, dict[str, Any]] = {
    "bsp": {},
    "float16": {"compress": "float16"},
    "top-k 10 %": {"compress": "top-k", "keep": 0.1},
    "top-k 1 %": {"compress": "top-k", "keep": 0.01},
    "powersgd rank 8": {"compress": "powersgd", "rank": 8},
    "powersgd rank 2": {"compress": "powersgd", "rank": 2},
    "local, every 4": {"mode": "local", "every": 4},
    "local, every 16": {"mode": "local", "every": 16},
    "diloco, every 16": DILOCO,
}
WIRE = {Operation.ALLREDUCE: 2, Operation.AVERAGE: 2, Operation.ALLGATHER: 1, Operation.ALLTOALL: 1}  # times (N - 1) / N


def main() -> None:
    """Run what is not there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs; without any, nine are made")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the runs here")
    parser.add_argument("--steps", type=int, default=DESCRIPTION["train"]["steps"], help="of each run (default %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        made = {} if args.runs else {name: trained(folder, name, sync, args.steps) for name, sync in PLANS.items()}
        report([row(name, run) for name, run in (made or {r.name: r for r in args.runs}).items()])


def trained(folder: Path, name: str, sync: dict[str, Any], steps: int) -> Path:
    """The folder of a run with this plan.sync."""
    out = folder / name.replace(" ", "-").replace(",", "").replace("%", "percent")
    shutil.rmtree(out, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {**DESCRIPTION, "plan": {**DESCRIPTION["plan"], "sync": sync}, "train": {**DESCRIPTION["train"], "steps": steps}}
    config.save(config.build(tables), folder / "run.toml")
    beside = Path(sys.executable).with_name("mpirun")
    launcher = str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"
    command = [launcher, "-n", str(RANKS), sys.executable, "-m", "hpcpar", "train", str(folder / "run.toml"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return out


def row(name: str, folder: Path) -> dict[str, Any]:
    """Bytes that a rank sends a step, the loss at the end and on held-out text, the steps a second."""
    summary = json.loads((folder / "summary.json").read_text())
    found, steps = trace.open(folder), len(summary["losses"])
    return {
        "name": name,
        "bytes": sum(wire_bytes(found, rank) for rank in found.present) / len(found.present) / steps,
        "loss": float(np.mean(summary["losses"][-steps // 10 :])),
        "held_out": summary["held_out_loss"],
    }


def wire_bytes(found: trace.Trace, rank: int) -> float:
    """What a rank sends along dp for gradients and weights, in all steps."""
    events = found.events(rank)
    events = events[(events["kind"] == Kind.COLLECTIVE) & (events["axis"] == Axis.DP) & (events["step"] >= 1)]
    n = found.description["config"]["plan"]["dp"]
    return sum(times * (n - 1) / n * int(events["bytes"][events["operation"] == op].sum()) for op, times in WIRE.items())


def report(rows: list[dict[str, Any]]) -> None:
    """Print the table: KiB that a rank sends, mean loss of the last tenth of the steps, held-out loss; compared with the first row."""
    console = Console(highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("run", "KiB a step", "share", "loss", "held out", "more"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    first = rows[0]
    for r in rows:
        more = "-" if r["held_out"] is None or first["held_out"] is None else f"{r['held_out'] - first['held_out']:+.4f}"
        share = f"{100 * r['bytes'] / first['bytes']:.1f} %" if first["bytes"] else "-"
        held = "-" if r["held_out"] is None else f"{r['held_out']:.4f}"
        table.add_row(r["name"], f"{r['bytes'] / 1024:.1f}", share, f"{r['loss']:.4f}", held, more)
    console.print(table)


if __name__ == "__main__":
    main()
