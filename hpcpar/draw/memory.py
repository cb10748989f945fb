r"""What ranks hold over time: a panel a kind (stash, parameters, ...), a line a rank; a band from least to most where ranks are many.

MiB |   __/--\__   0        LINED ranks at most: lines, with the rank at the end
    |__/                    more: the band, its middle rank, and the rank that holds most
     s ->
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpcpar.draw.saving import save
from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Held = Mapping[int, tuple[np.ndarray, np.ndarray]]  # {rank: (seconds (n,), bytes (n,))}

LINED = 8
DASHES = ("-", "--", "-.", ":")
STRETCHES = 200  # of time; where there are more samples, the most in each stretch is drawn
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


def memory(held: Mapping[str, Held], title: str, path: str | Path) -> None:
    """Draw {kind: {rank: (seconds (n,), bytes (n,))}}; raises PlanError where nothing was sampled and as `save` does."""
    from matplotlib.figure import Figure

    if not held:
        raise PlanError("the trace holds no memory samples of these steps; there is nothing to draw")
    figure = Figure(figsize=(12, 1.0 + 2.0 * len(held)), layout="constrained")
    every = figure.subplots(len(held), 1, sharex=True, squeeze=False).ravel()
    last = max(float(seconds[-1]) for ranks in held.values() for seconds, _ in ranks.values())
    at = np.linspace(0.0, last or 1e-3, STRETCHES + 1)
    for axes, (kind, ranks) in zip(every, held.items(), strict=True):
        most = max(float(b.max()) for _, b in ranks.values())
        unit, factor = next((u for u in UNITS if most >= u[1]), UNITS[-1])
        (_lines if len(ranks) <= LINED else _band)(axes, ranks, at, factor)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
        axes.set_ylabel(f"{kind}\n{unit}", fontsize=9)
        axes.set_ylim(0, 1.12 * most / factor or 1.0)
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    longest = max(len(seconds) for ranks in held.values() for seconds, _ in ranks.values())
    merged = f"; the most in each {1e3 * at[1]:.3g} ms" if longest > STRETCHES or max(map(len, held.values())) > LINED else ""
    every[-1].set_xlabel(f"s since the first sample{merged}")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    save(figure, path)


def _lines(axes: Axes, ranks: Held, at: np.ndarray, factor: int) -> None:
    import matplotlib

    for i, (rank, (seconds, held)) in enumerate(ranks.items()):
        colour = matplotlib.colormaps["viridis"](0.85 * i / max(1, len(ranks) - 1))
        if len(seconds) > STRETCHES:
            seconds, held = at[:-1], peaks(seconds, held, at)
        x, y = np.append(seconds, at[-1]), np.append(held, held[-1])  # what was sampled last is held until the end
        axes.step(x, y / factor, where="post", color=colour, linestyle=DASHES[i % 4], linewidth=1.3, label=f"rank {rank}")


def _band(axes: Axes, ranks: Held, at: np.ndarray, factor: int) -> None:
    rows = np.stack([peaks(seconds, held, at) for seconds, held in ranks.values()]) / factor
    some = ~np.isnan(rows).all(axis=0)
    x, rows = at[:-1][some], rows[:, some]
    axes.fill_between(x, np.nanmin(rows, 0), np.nanmax(rows, 0), color="#bcd7f0", step="post", label=f"least to most of {len(ranks)} ranks")
    axes.step(x, np.nanmedian(rows, 0), where="post", color="#1b4f8a", linewidth=1.3, label="median rank")
    top = max(ranks, key=lambda rank: (int(ranks[rank][1].max()), -rank))
    mine = peaks(*ranks[top], at) / factor
    axes.step(at[:-1], mine, where="post", color="black", linestyle=":", linewidth=1.0, label=f"rank {top}, which held most")


def peaks(seconds: np.ndarray, held: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The most held in each stretch of time at[i] to at[i + 1], what was held at its beginning too; NaN before the first sample."""
    out = np.full(len(at) - 1, np.nan)
    before = np.searchsorted(seconds, at[:-1], side="right") - 1
    out[before >= 0] = held[before[before >= 0]]
    where = np.clip(np.searchsorted(at, seconds, side="right") - 1, 0, len(out) - 1)
    np.fmax.at(out, where, held.astype(float))
    return out
