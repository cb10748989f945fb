"""Some time of a run as a picture: a lane a rank.

    rank 0  |  receives       thin bars
            |  F  B  W ...    the broad band: compute, each kind with its own hatch; waits are a thin line in its middle
            |  collectives    thin bars
            |  sends          thin bars
             ms ->

Kinds differ in place, hatch and lightness, so that a print without colour reads as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.draw.saving import save
from hpcpar.trace.schema import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Style:
    """How a kind is drawn: where in its lane (0 bottom to 1 top), fill and hatch."""

    label: str
    low: float
    high: float
    fill: str
    hatch: str = ""


BAND = (0.34, 0.86)
STYLES = {
    Kind.F: Style("F forward", *BAND, "#bcd7f0"),
    Kind.B: Style("B backward", *BAND, "#f2a65a", "////"),
    Kind.I: Style("I input gradient", *BAND, "#f7cfa0", "\\\\\\\\"),
    Kind.W: Style("W weight gradient", *BAND, "#8fbf8f", "xxxx"),
    Kind.RECOMPUTE: Style("recompute", *BAND, "#dddddd", "...."),
    Kind.UPDATE: Style("update", *BAND, "#333333"),
    Kind.COPY: Style("copy", *BAND, "#ffffff", "||||"),
    Kind.IO: Style("i/o", *BAND, "#ffffff", "++++"),
    Kind.EVALUATE: Style("evaluation", *BAND, "#d8cfe8", "oo"),
    Kind.CHECKPOINT: Style("checkpoint", *BAND, "#ffffff", "**"),
    Kind.WAIT: Style("wait (thin)", 0.55, 0.65, "#b22222"),
    Kind.RECEIVE: Style("receive (above)", 0.89, 0.97, "#5b3a8e"),
    Kind.COLLECTIVE: Style("collective (below)", 0.2, 0.31, "#d9c400", "----"),
    Kind.SEND: Style("send (lowest)", 0.07, 0.16, "#1b7a7a"),
}
LABELLED = 16  # ranks up to which actions carry their microbatch


def timeline(lanes: Mapping[int, np.ndarray], ranks: int, first: int, last: int, title: str, path: str | Path) -> None:
    """Draw what `ranks` ranks did from `first` to `last` (ns) to a file whose ending names its format.

    `lanes` holds the events (n,) EVENT of each rank; one that is not among them is marked as missing. Raises PlanError for a format that is
    not known or a file that cannot be written.
    """
    from matplotlib.figure import Figure

    height = min(40.0, 1.6 + (0.75 if ranks <= LABELLED else 0.24) * ranks)
    figure = Figure(figsize=(13, height), layout="constrained")
    axes = figure.subplots()
    used = _lanes(axes, lanes, first, last)
    _frame(axes, lanes, ranks, (last - first) / 1e6, title)
    _legend(figure, used)
    save(figure, path)


def _lanes(axes: Axes, lanes: Mapping[int, np.ndarray], first: int, last: int) -> set[Kind]:
    """Draw all ranks, one collection a kind; returns the kinds that there are."""
    from matplotlib.collections import PolyCollection

    used = set()
    few = len(lanes) <= LABELLED
    for kind, style in STYLES.items():
        boxes = []
        for rank, events in lanes.items():
            mine = events[events["kind"] == kind]
            start = (np.maximum(mine["start"], first) - first) / 1e6
            end = (np.minimum(mine["end"], last) - first) / 1e6
            low, high = np.full(len(mine), -rank - 1 + style.low), np.full(len(mine), -rank - 1 + style.high)
            boxes.append(np.stack([np.stack(xy, axis=1) for xy in ((start, low), (start, high), (end, high), (end, low))], axis=1))
            if few and kind in (Kind.F, Kind.B, Kind.I, Kind.W):
                _numbers(axes, mine, start, end, (last - first) / 1e6, -rank - 1 + sum(BAND) / 2)
        every = np.concatenate(boxes) if boxes else np.empty((0, 4, 2))
        if len(every):
            used.add(kind)
            edge = "#222222" if kind is not Kind.WAIT else "none"
            drawn = PolyCollection(list(every), facecolors=style.fill, edgecolors=edge, linewidths=0.4 if few else 0.2)
            drawn.set_hatch(style.hatch if few else style.hatch[:2])  # denser lines would blacken a low lane
            drawn.set_gid(kind.name)
            axes.add_collection(drawn)
    return used


def _numbers(axes: Axes, events: np.ndarray, start: np.ndarray, end: np.ndarray, whole: float, y: float) -> None:
    """Write the microbatch into the actions that have room for it."""
    for event, a, b in zip(events, start, end, strict=True):
        if event["microbatch"] >= 0 and b - a > whole * 0.009 * max(1, len(str(event["microbatch"]))):
            box: dict[str, Any] = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
            axes.text((a + b) / 2, y, str(event["microbatch"]), ha="center", va="center", fontsize=8, bbox=box, clip_on=True)


def _frame(axes: Axes, lanes: Mapping[int, np.ndarray], ranks: int, length: float, title: str) -> None:
    few = ranks <= LABELLED
    axes.set_xlim(0, length)
    axes.set_ylim(-ranks, 0)
    axes.set_yticks([-r - 0.5 for r in range(ranks)])
    names = [f"rank {r}" if few else str(r) for r in range(ranks)]
    axes.set_yticklabels([n if r in lanes else f"{n} missing" for r, n in enumerate(names)], fontsize=9 if few else 7)
    axes.set_ylabel("" if few else "rank")
    axes.hlines(range(-ranks + 1, 0), 0, length, colors="#cccccc", linewidth=0.5, zorder=0)
    axes.set_xlabel("ms since the first event")
    axes.set_title(title, loc="left", fontsize=10)


def _legend(figure: Figure, used: set[Kind]) -> None:
    from matplotlib.patches import Patch

    styles = [style for kind, style in STYLES.items() if kind in used]
    handles = [Patch(facecolor=s.fill, edgecolor="#222222", hatch=s.hatch, linewidth=0.5, label=s.label) for s in styles]
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=min(7, len(handles)), fontsize=9, frameon=False)
