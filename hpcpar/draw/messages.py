"""Who sends how much to whom: a matrix of ranks, sources down and destinations across, darker for more bytes a step.

source 0 |  .  2M  .       white: nothing was sent; hatched: a rank whose trace is missing, so that nobody knows
       1 | 2M   .  2M
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.draw.saving import save
from hpcpar.errors import PlanError

NUMBERED = 12  # ranks up to which a cell bears its bytes
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


def messages(pairs: Sequence[dict[str, Any]], ranks: int, steps: int, title: str, path: str | Path, missing: Sequence[int] = ()) -> None:
    """Draw rows of source, destination, bytes (of all `steps` steps); of collectives those of experts alone are among them.

    Raises PlanError as `save` does and where nothing was sent.
    """
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    if not pairs:
        raise PlanError("no message from rank to rank is in the steps of the trace; there is nothing to draw")
    sent = np.full((ranks, ranks), np.nan)
    for row in pairs:
        sent[row["source"], row["destination"]] = row["bytes"] / max(1, steps)
    unit, factor = next((u for u in UNITS if np.nanmax(sent) >= u[1]), UNITS[-1])
    sent /= factor
    side = min(14.0, 4.0 + 0.35 * min(ranks, 32))
    figure = Figure(figsize=(side + 1.4, side), layout="constrained")
    axes = figure.subplots()
    least, most = float(np.nanmin(sent)), float(np.nanmax(sent))
    wide = 0 < 20 * least < most
    image = axes.imshow(sent, cmap="cividis_r", norm=LogNorm(least, most) if wide else Normalize(0.0, most))
    for rank in missing:
        axes.axhspan(rank - 0.5, rank + 0.5, facecolor="white", hatch="////", edgecolor="#777777", linewidth=0)
    if ranks <= NUMBERED:
        for s, d in zip(*np.nonzero(~np.isnan(sent)), strict=True):
            dark = float(image.norm(sent[s, d])) > 0.5  # type: ignore[arg-type]
            axes.text(d, s, f"{sent[s, d]:.3g}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    every = max(1, -(-ranks // 32))
    axes.set_xticks(range(0, ranks, every))
    axes.set_yticks(range(0, ranks, every))
    axes.tick_params(labelsize=8)
    if ranks <= 64:
        axes.set_xticks(np.arange(-0.5, ranks), minor=True)
        axes.set_yticks(np.arange(-0.5, ranks), minor=True)
        axes.grid(which="minor", color="#dddddd", linewidth=0.4)
        axes.tick_params(which="minor", length=0)
    axes.set_xlabel("destination rank")
    axes.set_ylabel("source rank" + (" (hatched: its trace is missing)" if len(missing) else ""))
    axes.set_title(title, loc="left", fontsize=10)
    bar = figure.colorbar(image, ax=axes, fraction=0.045, pad=0.02, format="{x:g}")
    bar.set_label(f"{unit} a step; of collectives those of experts alone" + (" (logarithmic)" if wide else ""), fontsize=9)
    save(figure, path)
