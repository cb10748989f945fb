r"""The bubble of every synchronous schedule against its microbatches, from the very lists that would run and the schedule's clock.

    bubble |\                 a line a schedule, named at its right end; a star where a run was measured
           |  \__ 1f1b
           |____\__ zb-h1
           +----------- m

A schedule has a point where it exists: interleaving wants m to be a multiple of p, the two-directional ones even p and m.
"""

from __future__ import annotations

from pathlib import Path

from hpcpar.draw.saving import save
from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES, Times, clock, generate, lower
from hpcpar.schedule.family import Asynchronous

MULTIPLES = (0.5, 1, 2, 3, 4, 6, 8)  # of p: the microbatches that are tried
CHUNKS = {"interleaved": 2}
DASHES = ("-", "--", "-.", ":")
MARKS = "osD^vP*X<>h"


def bubbles(p: int, times: Times) -> dict[str, list[tuple[int, float]]]:
    """{schedule: [(m, idle / total)]} on p ranks, where the schedule exists; asynchronous ones have no bubble of a step."""
    out: dict[str, list[tuple[int, float]]] = {}
    for name, family in SCHEDULES.items():
        if isinstance(family, Asynchronous):
            continue
        for m in dict.fromkeys(max(1, round(p * k)) for k in MULTIPLES):
            try:
                schedule = generate(name, stages=p, microbatches=m, chunks=CHUNKS.get(name, 1))
            except PlanError:
                continue
            out.setdefault(name, []).append((m, clock(lower(schedule), times).bubble_total))
    return out


def bubble(p: int, times: Times, measured: tuple[str, int, float] | None, title: str, path: str | Path) -> None:
    """Draw the bubbles of p ranks; `measured` is (schedule, m, idle / total) of a run. Raises PlanError as `save` does."""
    from matplotlib.figure import Figure

    found = bubbles(p, times)
    figure = Figure(figsize=(10.5, 6), layout="constrained")
    axes = figure.subplots()
    for i, (name, points) in enumerate(found.items()):
        x, y = [m for m, _ in points], [100 * b for _, b in points]
        label = f"{name} (v = {CHUNKS[name]})" if name in CHUNKS else name
        axes.plot(
            x,
            y,
            marker=MARKS[i % len(MARKS)],
            linestyle=DASHES[i % 4],
            color=f"C{i % 10}",
            markersize=13 - 0.8 * i,
            markeredgecolor="black",
            label=label,
        )
    if measured is not None:
        name, m, share = measured
        axes.plot([m], [100 * share], marker="*", markersize=18, color="white", markeredgecolor="black", linestyle="")
        axes.annotate(f"measured: {name}, m = {m}", (m, 100 * share), xytext=(12, 6), textcoords="offset points", fontsize=9)
    ticks = sorted({m for points in found.values() for m, _ in points} | ({measured[1]} if measured else set()))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=-1)
    axes.set_xlabel("microbatches m of a step")
    axes.set_ylabel("bubble: idle / total, %")
    axes.grid(color="#dddddd", linewidth=0.5)
    f, i, w = (getattr(times, k) for k in "FIW")
    axes.set_title(f"{title}   (F : I : W = 1 : {i / f:.3g} : {w / f:.3g})", loc="left", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
    save(figure, path)
