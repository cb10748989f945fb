"""Several runs against their ranks: tokens a second beside the ideal line, and the efficiency.

tokens/s |       / o         a line a series: strong (the same tokens a step) or weak (the same tokens a step and rank)
         |   o/              ideal: the run with fewest ranks, times the ranks
         +--------- ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcpar.draw.saving import save
from hpcpar.errors import PlanError

MARKS = "osD^vP"


def series(points: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs by what they keep equal, each series of two or more with `efficiency` = (tokens/s over ranks) / that of its fewest ranks.

    A point is name, ranks, tokens_per_s and tokens, those of a step; a run without a rate is left out.
    """
    known = [p for p in points if p["tokens_per_s"] and p["tokens"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for p in known:
        groups.setdefault(f"strong: {p['tokens']:,} tokens a step", []).append(p)
        groups.setdefault(f"weak: {p['tokens'] / p['ranks']:,.6g} tokens a step and rank", []).append(p)
    several = {name: members for name, members in groups.items() if len({p["ranks"] for p in members}) > 1}
    alone = [p for p in known if not any(p in members for members in several.values())]
    if alone:
        several["other runs"] = alone
    out = {}
    for name, members in several.items():
        members = sorted(members, key=lambda p: p["ranks"])
        base = members[0]["tokens_per_s"] / members[0]["ranks"]
        out[name] = [{**p, "efficiency": p["tokens_per_s"] / p["ranks"] / base if name != "other runs" else None} for p in members]
    return out


def scaling(points: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Draw the series of these points; raises PlanError where no run has a rate, and as `save` does."""
    from matplotlib.figure import Figure

    found = series(points)
    if not found:
        raise PlanError("none of these runs has tokens a second; a scaling picture needs runs with steps and a configuration")
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    rate, efficiency = figure.subplots(1, 2)
    ticks = sorted({p["ranks"] for p in points})
    for i, (name, members) in enumerate(found.items()):
        x = [p["ranks"] for p in members]
        line = "" if name == "other runs" else "-"
        style = {"marker": MARKS[i % len(MARKS)], "linestyle": line, "color": f"C{i}", "markeredgecolor": "black", "label": name}
        rate.plot(x, [p["tokens_per_s"] for p in members], **style)
        for p in members:
            rate.annotate(p["name"], (p["ranks"], p["tokens_per_s"]), xytext=(5, -11), textcoords="offset points", fontsize=7)
        if line:
            base = members[0]
            ideal = [base["tokens_per_s"] * r / base["ranks"] for r in (x[0], x[-1])]
            rate.plot([x[0], x[-1]], ideal, color="#555555", linestyle=":", linewidth=1.2, label="ideal" if i == 0 else None)
            efficiency.plot(x, [100 * p["efficiency"] for p in members], **style)
    for axes in (rate, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.set_xlabel("ranks")
        axes.grid(color="#dddddd", linewidth=0.5)
    rate.set_yscale("log", base=10)
    rate.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    rate.yaxis.set_minor_formatter(lambda y, _: f"{y:,.0f}" if f"{y:.0e}"[0] in "25" else "")
    rate.set_ylabel("tokens/s")
    rate.margins(0.12)
    rate.legend(fontsize=8, frameon=False)
    efficiency.axhline(100, color="#555555", linestyle=":", linewidth=1.2)
    efficiency.set_ylabel("efficiency: tokens/s a rank, % of the fewest ranks'")
    efficiency.set_ylim(0, 1.1 * max([100.0, *(100 * p["efficiency"] for m in found.values() for p in m if p["efficiency"])]))
    save(figure, path)
