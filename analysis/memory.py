"""What the fullest rank of a run held, by kind and strategy: the peaks in the traces, against `hpcpar memory`, which runs nothing.

    python analysis/memory.py RUN RUN ... [--png F]
    python analysis/memory.py --make [--out DIR] [--steps N] [--png F]      a small model on four ranks, a strategy each; a minute

KiB. Each kind's own peak; they need not fall together, so that their sum is what the rank needs at most. The stash is what microbatches
in flight keep between forward and backward, and under zb-h1 and its like until W. Buffers are gathered weights, buckets of gradients and
the like. The formula is the ZeRO paper's, of Psi parameters over N replicas. What `hpcpar memory` does not know (experts) is "-".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import script
import strategies

from hpcpar import config, trace
from hpcpar.analyse.memory import peaks
from hpcpar.draw.saving import save
from hpcpar.errors import PlanError
from hpcpar.run.memory import held

STEPS = strategies.STEPS
KINDS = {"parameters": "#bcd7f0", "gradients": "#f2a65a", "optimizer": "#8fbf8f", "stash": "#ffffff", "buffers": "#555555"}
HATCHES = ("", "////", "xxxx", "....", "")
make = strategies.make


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a run."""
    return [of_run(folder) for folder in folders]


def of_run(folder: Path) -> dict[str, Any]:
    """The kinds of the rank that held most, what was predicted of it, and its formula."""
    found = trace.open(folder)
    ranks = []
    for samples in peaks(found):
        rank, others = samples.pop("rank"), {k: b for k, b in samples.items() if k not in KINDS and k != "device"}
        ranks.append({"rank": rank, **{k: samples.get(k, 0) for k in KINDS if k != "buffers"}, "buffers": sum(others.values())})
    if not any(r[k] for r in ranks for k in KINDS):
        raise PlanError(f"{folder} has no memory samples in its trace")
    most = max(ranks, key=lambda r: sum(r[k] for k in KINDS))
    cfg = config.build(found.description["config"])
    mine = next(h for h in held(cfg) if most["rank"] in h.ranks)
    predicted = sum(mine.kinds.values()) + sum(mine.buffers.values()) + mine.activations.total if mine.activations else None
    together = sum(most[k] for k in KINDS)
    return {
        "run": folder.name,
        **most,
        "together": together,
        "predicted": predicted,
        "formula": f"{mine.formula}, Psi = {mine.elements:,}, N = {mine.owners}",
    }


def finding(found: Sequence[dict[str, Any]]) -> str:
    """Who holds most and least, and how far the prediction is off."""
    order = sorted(found, key=lambda r: r["together"])
    known = [abs(r["together"] / r["predicted"] - 1) for r in found if r["predicted"]]
    least, most = order[0], order[-1]
    how = "to the byte" if known and not any(known) else f"within {100 * max(known, default=0.0):.1f} %"
    told = f"; `hpcpar memory` foretells each {how}" if known else ""
    return (
        f"{least['run']} holds least ({least['together'] / 1024:,.0f} KiB), {most['run']} most ({most['together'] / 1024:,.0f} KiB){told}"
    )


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a run."""
    lines = [
        [
            r["run"],
            r["formula"].replace("Ψ", " Psi"),
            str(r["rank"]),
            *(f"{r[k] / 1024:.1f}" for k in (*KINDS, "together")),
            script.number(r["predicted"], "{:.1f}", 1 / 1024),
            f"{r['together'] / r['predicted']:.4f}" if r["predicted"] else "-",
        ]
        for r in found
    ]
    head = ("run", "formula without the stash, bytes", "fullest rank", *KINDS, "together", "predicted", "held / predicted")
    return script.markdown(head, lines, 2)


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """A bar a run, the kinds stacked, and a mark where `hpcpar memory` puts their sum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.3 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(found)
    for (kind, colour), hatch in zip(KINDS.items(), HATCHES, strict=True):
        sizes = [r[kind] / 1024 for r in found]
        axes.barh(range(len(found)), sizes, left=left, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5, label=kind)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    known = [(i, r["predicted"] / 1024) for i, r in enumerate(found) if r["predicted"]]
    axes.plot([x for _, x in known], [i for i, _ in known], "k|", markersize=22, markeredgewidth=2.5, label="`hpcpar memory`")
    axes.set_yticks(range(len(found)), [r["run"] for r in found], fontsize=9)
    axes.invert_yaxis()
    axes.margins(y=0.02)
    axes.set_xlim(0, 1.04 * max(left))
    axes.set_xlabel("KiB, peaks of the fullest rank")
    figure.legend(loc="outside upper center", ncols=len(KINDS) + 1, frameon=False, fontsize=8)
    axes.set_title(finding(found), fontsize=9)
    save(figure, path)


if __name__ == "__main__":
    script.main(script.this())
