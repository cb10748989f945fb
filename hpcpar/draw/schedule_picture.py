"""A schedule as SVG or PNG: a row a rank; kinds differ in height and lightness, so that they can be told apart without colour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpar.errors import PlanError
from hpcpar.schedule.action import Kind

if TYPE_CHECKING:
    from hpcpar.schedule.clock import Timing

# kind -> (colour from light to dark, height, place of the lower edge), within a row of height 1
LOOK = {
    Kind.F: ("#bcd9f2", 0.90, 0.05, "F: forward"),
    Kind.B: ("#2b6ca8", 0.90, 0.05, "B: backward, both halves"),
    Kind.I: ("#f0a25c", 0.62, 0.05, "I: backward, input half"),
    Kind.W: ("#1d5a3c", 0.34, 0.05, "W: backward, weight half"),
    Kind.U: ("#000000", 1.00, 0.00, "U: update"),
}
DARK = (Kind.B, Kind.W, Kind.U)
MAX_NAMES = 1500  # beyond, names would be too small to read


def save(timing: Timing, path: str | Path) -> None:
    """Draw a timing into a file whose ending, .svg or .png, says how; raises PlanError where it cannot be written."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    schedule = timing.program.schedule
    ranks = len(schedule.ranks)
    rows = [[(a, s, e) for a, s, e in timing.compute(r) if e > s] for r in range(ranks)]
    count = sum(len(row) for row in rows)
    longest = max(len(row) for row in rows)
    with rc_context({"svg.hashsalt": schedule.name}):  # the same schedule gives the same file
        figure = Figure(figsize=(min(40.0, max(7.0, 0.36 * longest)), 1.6 + 0.34 * ranks), layout="constrained")
        axes = figure.add_subplot()
        present = []
        for kind, (colour, height, low, name) in LOOK.items():
            bars = [(r, s, e) for r, row in enumerate(rows) for a, s, e in row if a.kind is kind]
            if bars:
                _bars(axes, bars, colour, height, low, 0.5 if count <= MAX_NAMES else 0.0)
                present.append(Patch(facecolor=colour, edgecolor="black", linewidth=0.5, label=name))
        if count <= MAX_NAMES:
            _names(axes, rows, [len(schedule.stages_of(r)) > 1 for r in range(ranks)])
        axes.set_xlim(0.0, max(b for _, b in timing.spans) or 1.0)
        axes.set_ylim(ranks, 0.0)
        axes.set_yticks([r + 0.5 for r in range(ranks)], [str(r) for r in range(ranks)])
        axes.set_xlabel("time (in the unit of the times given)")
        axes.set_ylabel("pipeline rank")
        axes.set_title(
            f"{schedule.name}, {ranks} ranks, {schedule.microbatches} microbatches: cost {timing.cost:.6g}, "
            f"bubble {timing.bubble_total:.4f} of the total, {timing.bubble_ideal:.4f} of the ideal",
            fontsize=9,
        )
        figure.legend(handles=present, loc="outside lower center", ncols=len(present) or 1, frameon=False, fontsize=8)
        try:
            figure.savefig(path, dpi=110, metadata={"Date": None} if str(path).endswith(".svg") else None)
        except (OSError, ValueError) as e:
            raise PlanError(f"cannot write {path}: {e}; use a file that ends in .svg or .png in a folder that exists") from None


def _bars(axes: Any, bars: list[tuple[int, float, float]], colour: str, height: float, low: float, edge: float) -> None:
    from matplotlib.collections import PolyCollection

    corners = []
    for r, s, e in bars:
        bottom = r + 1 - low
        top = bottom - height
        corners.append(((s, bottom), (s, top), (e, top), (e, bottom)))
    axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors="black" if edge else "none", linewidths=edge), autolim=False)


def _names(axes: Any, rows: list, several: list[bool]) -> None:
    for r, row in enumerate(rows):
        for a, s, e in row:
            _, height, low, _ = LOOK[a.kind]
            word = str(a.microbatch if a.microbatch is not None else a.version or "")
            if several[r]:
                word = f"{a.stage}:{word}"
            colour = "white" if a.kind in DARK else "black"
            axes.text((s + e) / 2, r + 1 - low - height / 2, word, ha="center", va="center", fontsize=6, color=colour, clip_on=True)
