"""`hpcpar compare DIR DIR`: how far the losses, gradient norms and weights of two runs are apart."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np


def add(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "compare",
        help="losses, gradient norms and weights of two runs: largest relative difference, and where",
        description="Compare two run folders: the largest relative differences of the losses and gradient norms over all steps, and of the "
        "weights at the end. 0 is bit-equal. Exits with 0 whatever they are, with 2 if a folder is no run.",
    )
    parser.add_argument("runs", nargs=2, metavar="DIR", help="folder that `hpcpar train --out` wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Compare and print; raises PlanError if a folder is no run."""
    found = compare(*map(Path, args.runs))
    if args.json:
        # 1e999 is JSON, as Infinity is not, and reads as infinity.
        print(json.dumps(found, indent=2).replace(": Infinity", ": 1e999"))
    else:
        _print(found)
    return 0


def compare(first: Path, second: Path) -> dict[str, Any]:
    """The differences of two runs: loss, grad_norm, weights, worst_weight, the steps where they are, and notes."""
    from hpcpar.analyse import difference

    a, b = difference.read_metrics(first), difference.read_metrics(second)
    (step_a, weights_a), (step_b, weights_b) = _weights(first), _weights(second)
    parts = [difference.series(name, a[name], b[name]) for name in ("loss", "grad_norm")]
    parts.append(difference.weights(weights_a, weights_b))
    notes = [note for part in parts for note in part["notes"]]
    if step_a != step_b or step_a is None:
        named = ["no complete checkpoint" if step is None else f"a checkpoint of {step}" for step in (step_a, step_b)]
        notes.append(f"weights: the first run has {named[0]}, the second {named[1]}")
        parts[-1]["weights"] = math.inf
    out = {key: value for part in parts for key, value in part.items() if key != "notes"}
    return {**out, "notes": notes}


def _weights(run: Path) -> tuple[str | None, dict[str, np.ndarray]]:
    """The name of the newest complete checkpoint of a run and its weights by name; None and nothing without one."""
    from hpcpar import checkpoint

    path = checkpoint.newest(run / "checkpoints")
    return (None, {}) if path is None else (path.name, checkpoint.read_weights(path))


def _print(found: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("", "largest relative difference", "where", box=box.SIMPLE_HEAD)
    for name in ("loss", "grad_norm"):
        step = found[f"{name}_step"]
        table.add_row(name, _number(found[name]), "" if step is None or not found[name] else f"step {step}")
    table.add_row("weights", _number(found["weights"]), (found["worst_weight"] or "") if found["weights"] else "")
    console = Console()
    console.print(table)
    for note in found["notes"]:
        console.print(note, markup=False)


def _number(x: float) -> str:
    return "0 (bit-equal)" if x == 0 else f"{x:.3g}"
