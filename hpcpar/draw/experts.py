"""How many tokens each expert computed, step by step: a map a block, an expert a row, the mean of the block as 1.

    expert 0  |  1.3 1.1 0.9 ...      light is more than the mean, dark less: lightness alone says it, in print too
    expert 1  |  0.7 0.9 1.1 ...      hatched: steps that the trace does not hold
               step ->

Where there are more steps than COLUMNS, a column is the mean of some.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.draw.saving import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 600
COLOURS = "cividis"  # even steps of lightness, the same to all kinds of colour vision
TOP = 2.0  # the scale's end, so that an even load is in its middle; more looks like twice the mean


def heat_map(blocks: Mapping[int, tuple[np.ndarray, np.ndarray]], title: str, path: str | Path) -> None:
    """Draw {block: (steps (n,), tokens over their mean (n, E))}; NaN is a step without tokens. Raises PlanError as `save` does."""
    from matplotlib.figure import Figure

    columns = 1 if len(blocks) <= 4 else 2 if len(blocks) <= 16 else 4
    rows = ceil(len(blocks) / columns)
    most = max(values.shape[1] for _, values in blocks.values())
    figure = Figure(figsize=(11 if columns == 1 else 14, min(60.0, 1.4 + rows * (0.9 + min(2.6, 0.22 * most)))), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    drawn = None
    for axes, (block, (steps, values)) in zip(every, blocks.items(), strict=False):
        drawn = _map(axes, steps, values)
        axes.set_title(f"block {block}", loc="left", fontsize=9)
        axes.set_ylabel("expert", fontsize=9)
    for axes in every[len(blocks) :]:
        axes.set_visible(False)
    for axes in every[max(0, len(blocks) - columns) : len(blocks)]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    assert drawn is not None
    over = any(float(np.nanmax(values, initial=0.0)) > TOP for _, values in blocks.values())
    bar = figure.colorbar(drawn, ax=every.tolist(), extend="max" if over else "neither", fraction=0.03, pad=0.01)
    bar.set_label("tokens / mean of the block", fontsize=9)
    bar.ax.axhline(1.0, color="black", linewidth=1.0)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    save(figure, path)


def _map(axes: Axes, steps: np.ndarray, values: np.ndarray) -> Any:
    """One block's map: (n,), (n, E)."""
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    first, last = int(steps[0]), int(steps[-1])
    whole = np.full((last - first + 1, values.shape[1]), np.nan)
    whole[steps - first] = values
    width = ceil(len(whole) / COLUMNS)
    cells = binned(whole, width)
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=(0, 0, 0, 0))
    axes.patch.set(hatch="////", edgecolor="#999999", facecolor="white")  # shows where there is no cell
    right, experts = first - 0.5 + width * len(cells), values.shape[1]
    image = axes.imshow(
        cells.T,
        aspect="auto",
        interpolation="nearest",
        origin="upper",
        extent=(first - 0.5, right, experts - 0.5, -0.5),
        cmap=colours,
        vmin=0.0,
        vmax=TOP,
    )
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_yticks(range(0, experts, max(1, ceil(experts / 16))))
    axes.tick_params(labelsize=8)
    return image


def binned(values: np.ndarray, width: int) -> np.ndarray:
    """values (n, E) -> (ceil(n / width), E): means of `width` rows each, of those that are known; NaN where none is."""
    padded = np.full((ceil(len(values) / width) * width, values.shape[1]), np.nan)
    padded[: len(values)] = values
    parts = padded.reshape(-1, width, values.shape[1])
    known = ~np.isnan(parts)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, parts, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
