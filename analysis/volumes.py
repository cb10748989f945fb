"""What a rank sends in a step, by axis: counted in the traces of runs, against the closed forms.

    python analysis/volumes.py RUN RUN ... [--png F]
    python analysis/volumes.py --make [--out DIR] [--steps N] [--png F]      a small model on four ranks, a strategy each; a minute

KiB a rank and step, the mean over ranks; collectives as a ring sends them. Psi parameters of a stage, N replicas, k = accumulate x
microbatches, S stages in p ranks, b samples of T positions and D wide in a microbatch. Left out: norms, tied weights and shared
key/value heads, all of them small, and experts, which the routing alone knows. A form that is not known for a plan is "-". Exit code 1
where a run sent other than its form says.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import script
import strategies

from hpcpar import config, trace
from hpcpar.analyse.steps import steps
from hpcpar.analyse.volumes import volumes
from hpcpar.config import Config
from hpcpar.draw.saving import save
from hpcpar.forms import context, tensor, zero
from hpcpar.forms.data import ring_bytes
from hpcpar.nn.describe import cut_stages
from hpcpar.nn.parameters import FlatMap

STEPS = strategies.STEPS
make = strategies.make
ITEMSIZE = {"float32": 4, "float64": 8}
COUNTED = {  # axis -> (kind, operation) -> how often a ring passes the array
    "dp": {("collective", "allreduce"): 2, ("collective", "reduce_scatter"): 1, ("collective", "allgather"): 1},
    "pp": {("send", "activation"): 0, ("send", "gradient"): 0},
    "tp": {("collective", o): n for o, n in (("allreduce", 2), ("softmax", 2), ("reduce_scatter", 1), ("allgather", 1))},
    "cp": {
        ("send", "keys_values"): 0,
        ("send", "keys_values_gradient"): 0,
        ("collective", "keys_values"): 1,
        ("collective", "keys_values_gradient"): 1,
        ("collective", "to_heads"): 0,
        ("collective", "to_sequence"): 0,
    },
}
FORMS = {
    "dp": {0: "2 Psi (N-1)/N", 1: "2 Psi (N-1)/N", 2: "(k+1) Psi (N-1)/N", 3: "3 k Psi (N-1)/N"},
    "pp": "2 (S-1) k b T D / p",
    "tp": {False: "8 b T D (t-1)/t a block, k times, and the ends", True: "10 b T D (t-1)/t a block, k times, and the ends"},
    "cp": {"zig-zag": "keys and values round the ring", "ring": "round the ring, as far as they are seen"}
    | {"gather": "gathered, summed back", "ulysses": "positions for heads and back"},
}


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a run and axis along which it sent something."""
    return [row for folder in folders for row in of_run(folder)]


def of_run(folder: Path) -> list[dict[str, Any]]:
    """A row an axis along which the run sent something."""
    found = trace.open(folder)
    cfg = config.build(found.description["config"])
    moved = volumes(found, steps(found))["operations"]
    out = []
    for axis, counted in COUNTED.items():
        n = getattr(cfg.plan, axis)
        mine = [
            (r["bytes_per_step"], counted[r["kind"], r["operation"]])
            for r in moved
            if r["axis"] == axis and (r["kind"], r["operation"]) in counted
        ]
        if n > 1:
            sent = sum(size * (passes * (n - 1) / n if passes else 1) for size, passes in mine) / len(found.present)
            form, closed = predicted(cfg, axis)
            out.append({"run": folder.name, "axis": axis, "form": form, "predicted": closed, "counted": sent})
    return out


def predicted(cfg: Config, axis: str) -> tuple[str, float | None]:
    """The closed form of what a rank sends along an axis in a step, in words and in bytes; None where none is known."""
    plan, model, item = cfg.plan, cfg.model, ITEMSIZE.get(cfg.train.precision)
    k = plan.accumulate * plan.microbatches
    rows = cfg.train.batch // (plan.dp * k) * model.context  # of a microbatch
    again = 1 + (plan.recompute == "full")
    if item is None or plan.replicas or plan.schedule not in ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"):
        return "-", None
    stages = cut_stages(model, plan.stages, plan.pp * plan.chunks)
    if axis == "dp":
        psi = [FlatMap(layers).size for layers in stages]
        arrays = [(o, n * item) for size in psi for o, n in zero.sent(plan.zero, size, k).items()]
        total = sum((ring_bytes(o, n, plan.dp) for o, n in arrays), Fraction())
        plain = plan.tp == plan.cp == 1 and plan.sync.mode == "bsp" and plan.sync.compress in (None, "none")
        return FORMS["dp"][plan.zero], float(total / plan.pp) if plain else None
    if axis == "pp":
        whole = plan.tp == plan.cp == 1
        return FORMS["pp"], 2 * (len(stages) - 1) * k * rows * model.width * item / plan.pp if whole else None
    if axis == "tp":
        calls = [
            c for layers in stages for layer in layers for c in tensor.sent(layer, model, rows, item, plan.sequence, again > 1).items()
        ]
        total_tp = sum(n * tensor.link_elements(operation, size, plan.tp) for (operation, size), n in calls)
        return FORMS["tp"][plan.sequence], k * total_tp / plan.pp if plan.cp == 1 else None
    at = context.Sizes(
        rows // model.context, model.context, model.heads, model.kv_heads or model.heads, model.width // model.heads, plan.cp
    )
    total_cp = 0.0
    for rank in range(plan.cp):
        for backward, times in ((False, again), (True, 1)):
            for m in context.messages(plan.context, at, rank, backward):
                passes = COUNTED["cp"].get((m.kind, m.operation))
                if passes is not None:
                    total_cp += times * m.elements * (passes * (plan.cp - 1) / plan.cp if passes else 1)
    return FORMS["cp"][plan.context], k * model.layers * total_cp * item / plan.cp / plan.pp if plan.tp == 1 else None


def differ(found: Sequence[dict[str, Any]]) -> list[str]:
    """The runs that sent other than their form says, with the axis."""
    return [
        f"{r['run']} ({r['axis']})"
        for r in found
        if r["predicted"] is not None and abs(r["counted"] - r["predicted"]) > 1e-9 * r["predicted"]
    ]


def finding(found: Sequence[dict[str, Any]]) -> str:
    """Whether every run sent what its form says."""
    known, off = [r for r in found if r["predicted"] is not None], differ(found)
    if off:
        return f"Not what the closed form says: {', '.join(off)}; the other {len(known) - len(off)} are"
    return f"In all {len(known)} cases a rank sends to the byte what the closed form says"


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a run and axis; counted / predicted is 1 where the run sent what the form says."""
    lines = [
        [
            r["run"],
            r["axis"],
            r["form"],
            script.number(r["predicted"], "{:.2f}", 1 / 1024),
            f"{r['counted'] / 1024:.2f}",
            "-" if r["predicted"] is None else f"{r['counted'] / r['predicted']:.6f}",
        ]
        for r in found
    ]
    return script.markdown(("run", "axis", "closed form, elements", "predicted, KiB", "counted, KiB", "counted / predicted"), lines, 3)


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars: counted, and a mark where the form predicts it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.4 + 0.3 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(found))
    axes.barh(places, [r["counted"] / 1024 for r in found], color="#bcd7f0", edgecolor="black", linewidth=0.5, label="counted in the trace")
    marks = [(i, r["predicted"] / 1024) for i, r in enumerate(found) if r["predicted"] is not None]
    axes.plot([x for _, x in marks], [i for i, _ in marks], "k|", markersize=22, markeredgewidth=2.5, label="closed form")
    axes.set_yticks(list(places), [f"{r['run']}, along {r['axis']}" for r in found], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.03, y=0.02)
    axes.set_xlabel("KiB that a rank sends in a step")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(finding(found), fontsize=10)
    save(figure, path)


if __name__ == "__main__":
    if off := differ(script.main(script.this())):
        sys.exit(f"other than the closed form: {', '.join(off)}")
