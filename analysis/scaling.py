"""Strong and weak scaling: tokens a second against ranks, and what of the efficiency the pipeline's bubble takes.

    python analysis/scaling.py RUN RUN ... [--png F]
    python analysis/scaling.py --make [--out DIR] [--steps N] [--png F]      thirteen runs, a minute on two cores

The first of the runs with the fewest ranks is the baseline; efficiency is tokens/s a rank over the baseline's. Strong: the same batch on
more ranks; weak: a batch that grows with them. The runs that are made sleep instead of computing (`train.emulate`), each rank for its
share of the model or of the batch, while messages, sums and updates are real. Parallel efficiency is POP's (docs/measures.md); 1 - bubble
is what the closed form leaves of a pipeline's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import runs
import script

from hpcpar import trace
from hpcpar.analyse.report import report
from hpcpar.analyse.scaling import scaling
from hpcpar.draw.saving import save

STEPS = 3
RANKS = (2, 4, 8)
SAMPLES, MICROBATCHES = 2, 16  # of a microbatch, and of a step on one rank
UNIT_S = 0.03  # F, I and W of one microbatch of the whole model
MODEL = {"layers": 8, "width": 32, "heads": 2, "vocabulary": 256, "context": 32}
STYLES = (("o", "-"), ("s", "--"), ("D", "-."), ("^", ":"))
AXES = ("dp", "pp", "cp", "tp")


def make(folder: Path, steps: int) -> list[Path]:
    """One rank; then data parallel, 1f1b and zb-h1 on the same batch, and data parallel on a batch that grows."""
    made = [one(folder, "one rank", steps, {})]
    for n in RANKS:
        made.append(one(folder, f"dp {n}", steps, {"dp": n, "microbatches": MICROBATCHES // n}))
        made.append(one(folder, f"dp {n} weak", steps, {"dp": n}, n * MICROBATCHES * SAMPLES))
        made += [one(folder, f"{s} {n}", steps, {"pp": n, "schedule": s}) for s in ("1f1b", "zb-h1")]
    return made


def one(folder: Path, name: str, steps: int, plan: dict[str, Any], batch: int = MICROBATCHES * SAMPLES) -> Path:
    """A run whose ranks sleep their share of a microbatch."""
    share = UNIT_S / plan.get("pp", 1)
    tables = {
        "model": MODEL,
        "plan": {"microbatches": MICROBATCHES, **plan},
        "train": {"batch": batch, "emulate": {"F": share, "I": share, "W": share}},
        "data": {"held_out": 0.0},
        "run": {"threads": 1},
    }
    return runs.train(folder, name, tables, steps)


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a run, as hpcpar/analyse/scaling.py has it, with `series`, what the run has in common with others but for its ranks, and
    `pipeline`, what the bubble's closed form leaves of a rank's time; None without a pipeline."""
    reports = [report(trace.open(folder)) for folder in folders]
    found = [
        {**row, "series": _series(one, row["kind"]), "pipeline": _pipeline(one)} for one, row in zip(reports, scaling(reports), strict=True)
    ]
    return sorted(found, key=lambda r: (r["series"], r["ranks"]))


def _series(one: dict[str, Any], kind: str | None) -> str:
    plan = one["run"]["plan"] or {}
    cut = [axis for axis in AXES if plan.get(axis, 1) > 1]
    words = [plan["schedule"] if axis == "pp" else axis for axis in cut]
    return f"{' x '.join(words) or 'one rank'}, {kind or 'another model'}"


def _pipeline(one: dict[str, Any]) -> float | None:
    closed = (one["bubble"] or {}).get("closed_form")
    return 1 - closed["bubble_total"] if closed and one["run"]["plan"]["pp"] > 1 else None


def finding(found: Sequence[dict[str, Any]]) -> str:
    """The efficiency of each series at its most ranks."""
    last = {r["series"]: r for r in found if r["efficiency"] is not None and r["kind"] != "baseline"}
    said = [f"{name} {100 * r['efficiency']:.0f} %" for name, r in last.items()]
    if not said:
        return "No two runs are of one model"
    return f"Efficiency on up to {max(r['ranks'] for r in last.values())} ranks: {'; '.join(said)}"


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a run."""
    lines = [
        [
            Path(r["run"]).name,
            r["series"],
            str(r["ranks"]),
            *(script.number(r[k], "{:,.0f}") for k in ("tokens_per_step", "tokens_per_s")),
            script.number(r["speedup"], "{:.2f}"),
            *(script.number(r[k], "{:.1f}", 100) for k in ("efficiency", "parallel", "pipeline")),
        ]
        for r in found
    ]
    return script.markdown(
        ("run", "series", "ranks", "tokens a step", "tokens/s", "speed-up", "efficiency, %", "parallel, %", "1 - bubble, %"), lines, 2
    )


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Tokens/s and efficiency against ranks, a line a series that starts at the baseline."""
    from matplotlib.figure import Figure

    base = next(r for r in found if r["kind"] == "baseline")
    names = [n for n in dict.fromkeys(r["series"] for r in found) if n != base["series"]]
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    rate, efficiency = figure.subplots(1, 2)
    ticks = sorted({r["ranks"] for r in found})
    for (mark, line), name in zip(STYLES * len(names), names, strict=False):
        mine = [base, *(r for r in found if r["series"] == name)]
        look = {"marker": mark, "linestyle": line, "color": "black", "markerfacecolor": "#bcd7f0", "markersize": 8, "label": name}
        rate.plot([r["ranks"] for r in mine], [r["tokens_per_s"] for r in mine], **look)
        known = [r for r in mine if r["efficiency"] is not None]
        efficiency.plot([r["ranks"] for r in known], [100 * r["efficiency"] for r in known], **look)
        closed = [r for r in mine if r["pipeline"] is not None]
        look |= {"linestyle": "", "color": "#777777", "markerfacecolor": "white", "label": f"{name}: 1 - bubble, closed form"}
        if closed:
            efficiency.plot([r["ranks"] for r in closed], [100 * r["pipeline"] for r in closed], **look)
    rate.plot(ticks, [base["tokens_per_s"] * n / base["ranks"] for n in ticks], color="#777777", linewidth=3, alpha=0.5, label="ideal")
    for axes in (rate, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.minorticks_off()
        axes.set_xlabel("ranks")
        axes.grid(color="#dddddd", linewidth=0.5)
    rate.set_yscale("log", base=2)
    rate.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    rate.set_ylabel("tokens/s")
    rate.legend(frameon=False, fontsize=8)
    handles = [(h, n) for h, n in zip(*efficiency.get_legend_handles_labels(), strict=True) if "closed" in n]
    if handles:
        efficiency.legend(*zip(*handles, strict=True), frameon=False, fontsize=8, loc="lower left")
    efficiency.set_ylim(0, 108)
    efficiency.set_ylabel("efficiency, % of one rank" if base["ranks"] == 1 else f"efficiency, % of {base['ranks']} ranks")
    figure.suptitle(finding(found), fontsize=10)
    save(figure, path)


if __name__ == "__main__":
    script.main(script.this())
