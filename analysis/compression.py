"""What is saved on the wire, and what it costs in loss: steps in bulk, whole and compressed, local SGD and DiLoCo, on one budget of tokens.

    python analysis/compression.py RUN RUN ... [--png F]          the first is what others are compared with
    python analysis/compression.py --make [--out DIR] [--steps N] [--png F]      nine runs on two ranks, some minutes on two cores

Bytes are counted from the traces: what a rank sends of its gradients or weights along dp in a step, as a ring would: 2 (N - 1) / N of an
all-reduced array, (N - 1) / N of one that is gathered or exchanged. Loss is the mean over the last tenth of the steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import runs
import script

from hpcpar import trace
from hpcpar.draw.saving import save
from hpcpar.errors import PlanError
from hpcpar.trace.schema import Axis, Kind, Operation

STEPS = 320
DESCRIPTION: dict[str, Any] = {
    "model": {"layers": 3, "width": 96, "heads": 4, "vocabulary": 256, "context": 64},
    "train": {"batch": 16, "learning_rate": 3e-3, "warmup": 20},
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


def make(folder: Path, steps: int) -> list[Path]:
    """A run each of PLANS."""
    return [runs.train(folder, name, {**DESCRIPTION, "plan": {"dp": 2, "sync": sync}}, steps) for name, sync in PLANS.items()]


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a run."""
    return [row(folder) for folder in folders]


def row(folder: Path) -> dict[str, Any]:
    """Bytes that a rank sends a step, the loss at the end and on held-out text; raises PlanError for a run that is not finished."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except OSError as e:
        raise PlanError(f"{folder} is no finished run: {e.strerror}") from None
    found, steps = trace.open(folder), len(summary["losses"])
    return {
        "run": folder.name,
        "bytes": sum(wire_bytes(found, rank) for rank in found.present) / len(found.present) / steps,
        "loss": float(np.mean(summary["losses"][-max(1, steps // 10) :])),
        "held_out": summary["held_out_loss"],
    }


def wire_bytes(found: trace.Trace, rank: int) -> float:
    """What a rank sends along dp for gradients and weights, in all steps."""
    events = found.events(rank)
    events = events[(events["kind"] == Kind.COLLECTIVE) & (events["axis"] == Axis.DP) & (events["step"] >= 1)]
    n = found.description["config"]["plan"]["dp"]
    return sum(times * (n - 1) / n * int(events["bytes"][events["operation"] == op].sum()) for op, times in WIRE.items())


def finding(found: Sequence[dict[str, Any]]) -> str:
    """Who sends least, and what that costs in loss."""
    first, least = found[0], min(found, key=lambda r: r["bytes"])
    return (
        f"{least['run']} sends {100 * least['bytes'] / first['bytes']:.1f} % of what {first['run']} sends, "
        f"for {least['loss'] - first['loss']:+.3f} nats of loss"
    )


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a run: KiB that a rank sends, mean loss of the last tenth of the steps, held-out loss; compared with the first row."""
    first = found[0]
    lines = []
    for r in found:
        more = None if r["held_out"] is None or first["held_out"] is None else r["held_out"] - first["held_out"]
        lines.append(
            [
                r["run"],
                f"{r['bytes'] / 1024:.1f}",
                f"{100 * r['bytes'] / first['bytes']:.1f}",
                f"{r['loss']:.4f}",
                script.number(r["held_out"], "{:.4f}"),
                script.number(more, "{:+.4f}"),
            ]
        )
    return script.markdown(("run", "KiB a step", "share, %", "loss", "held out", "more"), lines)


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """A point a run: loss against bytes, named."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    x, y = [r["bytes"] / 1024 for r in found], [r["loss"] for r in found]
    axes.plot(x, y, "o", color="#bcd7f0", markeredgecolor="black", markersize=8)
    axes.axhline(y[0], color="#777777", linestyle=":", linewidth=1)
    for r, a, b in zip(found, x, y, strict=True):
        axes.annotate(r["run"], (a, b), xytext=(6, 5), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.margins(0.15)
    axes.set_xlabel("KiB that a rank sends in a step")
    axes.set_ylabel("loss at the end, nats")
    axes.set_title(finding(found), fontsize=10)
    save(figure, path)


if __name__ == "__main__":
    script.main(script.this())
