"""The bubble of every synchronous schedule: as ranks that sleep made it, as ranks that compute made it, by clock and by closed form.

    python analysis/bubbles.py RUN RUN ... [--png F]
    python analysis/bubbles.py --make [--out DIR] [--steps N] [--png F]      thirty runs, two minutes on two cores

A bubble is idle / total of a step's longest span, in percent. The runs of four stages sleep instead of computing (`train.emulate`), F, I
and W alike, while every message between them is real; those of two stages compute, a core each. The clock runs the same list of actions
with the mean times of each stage in the trace; the closed form is of the literature (hpcpar/schedule/closed_forms.py), for stages of
equal times, and is left out where it does not hold. Lines are the clock's with F = I = W and messages that take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import runs
import script

from hpcpar import trace
from hpcpar.analyse.bubble import bubble
from hpcpar.analyse.steps import steps as steps_of
from hpcpar.analyse.throughput import config
from hpcpar.draw.bubble import bubbles
from hpcpar.draw.saving import save
from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES, Times
from hpcpar.schedule.family import Asynchronous

STEPS = 3
ASLEEP, AWAKE = 4, 2  # stages of the runs that sleep and of those that compute
MICROBATCHES = (4, 12)
UNIT_S = 0.015  # F, I and W of one microbatch
SLEEPING: dict[str, Any] = {
    "model": {"layers": 8, "width": 32, "heads": 2, "vocabulary": 256, "context": 32},
    "train": {"emulate": {"F": UNIT_S, "I": UNIT_S, "W": UNIT_S}},
    "data": {"held_out": 0.0},
    "run": {"threads": 1},
}
COMPUTING: dict[str, Any] = {
    "model": {"layers": 8, "width": 128, "heads": 4, "vocabulary": 256, "context": 128},
    "train": {"batch": 16},
    "data": {"held_out": 0.0},
    "run": {"threads": 1},
}
COMPUTING_MICROBATCHES = 8
COLUMNS = 5  # of small panels


def make(folder: Path, steps: int) -> list[Path]:
    """Every synchronous schedule asleep on four stages, few and many microbatches, and awake on two."""
    made = []
    for name, family in SCHEDULES.items():
        if isinstance(family, Asynchronous):
            continue
        plan = {"schedule": name, "chunks": family.chunks or 2}
        for m in MICROBATCHES:
            if family.paired and m < 2 * ASLEEP:
                continue
            tables = {**SLEEPING, "plan": {**plan, "pp": ASLEEP, "microbatches": m}, "train": {**SLEEPING["train"], "batch": m}}
            made.append(runs.train(folder, f"asleep {name} {m}", tables, steps))
        tables = {**COMPUTING, "plan": {**plan, "pp": AWAKE, "microbatches": COMPUTING_MICROBATCHES}}
        made.append(runs.train(folder, f"awake {name}", tables, 2 * steps))
    return made


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a run: schedule, p, m, whether its ranks slept, its bubble, the clock's and the closed form's."""
    return [of_run(folder) for folder in folders]


def of_run(folder: Path) -> dict[str, Any]:
    """The bubbles of a run; raises PlanError where it has none."""
    found = trace.open(folder)
    described, measured = config(found), bubble(found, steps_of(found))
    if described is None or measured is None or measured["clock"] is None:
        raise PlanError(f"{folder} has no bubble of a step: no measured step, or no synchronous pipeline")
    plan, closed = described.plan, measured["closed_form"]
    return {
        "schedule": plan.schedule,
        "p": plan.pp,
        "m": plan.microbatches,
        "asleep": described.train.asleep,
        "times": _times(described.train.emulate),
        "measured": measured["bubble_total"],
        "clock": measured["clock"]["bubble_total"],
        "closed": closed and closed["bubble_total"],
    }


def _times(emulate: Any) -> tuple[float, float, float]:
    return (emulate.F, emulate.I, emulate.W) if emulate and emulate.F else (1.0, 1.0, 1.0)


def finding(found: Sequence[dict[str, Any]]) -> str:
    """How far bubbles are from the clock, and who idles most and least at the most microbatches."""
    off = {}
    for word, kind in (("sleep", True), ("compute", False)):
        if mine := [abs(r["measured"] - r["clock"]) for r in found if r["asleep"] == kind]:
            off[word] = max(mine)
    said = " and ".join(f"{100 * x:.1f} points where ranks {word}" for word, x in off.items())
    asleep = [r for r in found if r["asleep"]] or list(found)
    m = max(r["m"] for r in asleep)
    last = sorted((r for r in asleep if r["m"] == m), key=lambda r: r["measured"])
    least, most = last[0], last[-1]
    return (
        f"Bubbles keep to the schedule's clock within {said}; with {least['p']} stages and {m} microbatches "
        f"{least['schedule']} idles least ({100 * least['measured']:.0f} %), {most['schedule']} most ({100 * most['measured']:.0f} %)"
    )


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a run."""
    lines = [
        [
            r["schedule"],
            "sleep" if r["asleep"] else "compute",
            str(r["p"]),
            str(r["m"]),
            *(script.number(r[k], "{:.1f}", 100) for k in ("measured", "clock", "closed")),
            f"{100 * (r['measured'] - r['clock']):+.1f}",
        ]
        for r in sorted(found, key=lambda r: (not r["asleep"], list(SCHEDULES).index(r["schedule"]), r["m"]))
    ]
    return script.markdown(("schedule", "ranks", "p", "m", "measured, %", "clock, %", "closed form, %", "measured - clock"), lines, 2)


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """A small panel a schedule: the clock's line over m, runs and closed forms as marks; below, the runs that compute, as bars."""
    from matplotlib.figure import Figure

    order = sorted(found, key=lambda r: (list(SCHEDULES).index(r["schedule"]), r["m"]))
    asleep, awake = ([r for r in order if r["asleep"] == kind] for kind in (True, False))
    names = [n for n in SCHEDULES if any(r["schedule"] == n for r in asleep)]
    lines = -(-len(names) // COLUMNS)
    figure = Figure(figsize=(10, 1.0 + 1.75 * lines + 2.5 * bool(awake)), layout="constrained")
    grid = figure.add_gridspec(lines + bool(awake), COLUMNS, height_ratios=[1.0] * lines + [1.3] * bool(awake))
    for i, name in enumerate(names):
        axes = figure.add_subplot(grid[i // COLUMNS, i % COLUMNS])
        _panel(axes, name, [r for r in asleep if r["schedule"] == name])
        if i % COLUMNS == 0:
            axes.set_ylabel("bubble, %", fontsize=8)
        if i == 0:
            axes.legend(loc="lower left", frameon=False, fontsize=8)
    if awake:
        _bars(figure.add_subplot(grid[lines, :]), awake)
    figure.suptitle(finding(found).replace("; ", "\n"), fontsize=10)
    save(figure, path)


def _panel(axes: Any, name: str, mine: Sequence[dict[str, Any]]) -> None:
    """One schedule: bubbles against microbatches."""
    p, (f, i, w) = mine[0]["p"], mine[0]["times"]
    line = bubbles(p, Times(F=f, I=i, W=w))[name]
    axes.plot([m for m, _ in line], [100 * b for _, b in line], "-", color="black", linewidth=1, label="clock")
    x = [r["m"] for r in mine]
    axes.plot(x, [100 * r["measured"] for r in mine], "o", color="#f2a65a", markeredgecolor="black", markersize=8, label="measured, asleep")
    closed = [(r["m"], 100 * r["closed"]) for r in mine if r["closed"] is not None]
    axes.plot([m for m, _ in closed], [b for _, b in closed], "x", color="black", markersize=6, label="closed form")
    axes.set_title(f"{name}, p = {p}", fontsize=9)
    axes.set_xscale("log", base=2)
    ticks = [m for m in (2, 4, 8, 16, 32) if line[0][0] <= m <= line[-1][0]]
    axes.set_xticks(ticks, [str(m) for m in ticks])
    axes.minorticks_off()
    axes.set_xlabel("microbatches m", fontsize=8)
    axes.set_ylim(-4, 84)
    axes.tick_params(labelsize=8)
    axes.grid(color="#dddddd", linewidth=0.5)


def _bars(axes: Any, awake: Sequence[dict[str, Any]]) -> None:
    """The runs that compute, beside the clock with their own mean times."""
    places = range(len(awake))
    axes.bar(places, [100 * r["measured"] for r in awake], width=0.6, color="#bcd7f0", edgecolor="black", label="measured")
    axes.plot(
        places, [100 * r["clock"] for r in awake], "_", color="black", markersize=26, markeredgewidth=2, label="clock, measured times"
    )
    closed = [(i, 100 * r["closed"]) for i, r in enumerate(awake) if r["closed"] is not None]
    axes.plot([i for i, _ in closed], [b for _, b in closed], "x", color="black", label="closed form, F = I = W")
    axes.set_xticks(list(places), [r["schedule"] for r in awake], fontsize=8)
    axes.set_ylabel("bubble, %", fontsize=8)
    axes.set_title(f"ranks that compute, p = {awake[0]['p']}, m = {awake[0]['m']}, a core each", fontsize=9)
    axes.set_ylim(-2, 1.35 * max(100 * max(r["measured"], r["clock"]) for r in awake))
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper right")
    axes.tick_params(labelsize=8)


if __name__ == "__main__":
    script.main(script.this())
