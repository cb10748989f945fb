"""Four ways to choose experts on one budget of tokens: what each costs in loss, how evenly it loads them, and how much it drops.

    python analysis/expert_balance.py RUN RUN ... [--png F]
    python analysis/expert_balance.py --make [--out DIR] [--steps N] [--png F]      trains jobs/experts-*.toml on four ranks

Forty steps take a minute on two cores, the 300 of the files some more. Loss is the mean over the last tenth of the steps, without
auxiliary losses; so are the other columns but `held out`. max/mean and CV are of the tokens that experts compute, `wanted` of what the
router asked for before the drop; of several blocks the mean.

What the papers say, to be seen here: Switch's auxiliary loss makes the load even, if not perfectly so, and its router starts uneven;
expert choice is even from the first step by construction, and leaves some tokens without an expert. Its loss is not comparable: which
tokens an expert takes depends on later ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import runs
import script

from hpcpar import config, trace
from hpcpar.analyse.experts import END, experts, loads, measures
from hpcpar.draw.saving import save
from hpcpar.errors import PlanError

JOBS = Path(__file__).parents[1] / "jobs"
NAMES = ("switch", "gshard", "mixtral", "choice")
STEPS = 40
COLUMNS: dict[str, tuple[str, int]] = {  # of a row of `experts`: its form and factor
    "imbalance": ("{:.3f}", 1),
    "cv": ("{:.3f}", 1),
    "wanted_imbalance": ("{:.3f}", 1),
    "drop_rate": ("{:.1f}", 100),
    "unrouted_rate": ("{:.1f}", 100),
    "entropy": ("{:.3f}", 1),
}
HEAD = ("run", "gate", "causal", "loss", "held out", "max/mean", "CV", "wanted max/mean", "dropped, %", "no expert, %", "entropy, nats")
STYLES = ("-", "--", "-.", ":")
COLOURS = ("#002a5c", "#4b6fa5", "#7d7c78", "#b08d00")  # from dark to light


def make(folder: Path, steps: int) -> list[Path]:
    """Train jobs/experts-<name>.toml for each of NAMES, without evaluations and checkpoints on the way."""
    straight = ["train.eval_every=0", "run.checkpoint_every=0"]
    return [runs.train(folder, name, config.load(JOBS / f"experts-{name}.toml", straight), steps) for name in NAMES]


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a run."""
    return [row(folder) for folder in folders]


def row(folder: Path) -> dict[str, Any]:
    """Loss, held-out loss and the means over blocks of a run; raises PlanError for one without experts."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except OSError as e:
        raise PlanError(f"{folder} is no finished run: {e.strerror}") from None
    opened = trace.open(folder)
    blocks = experts(opened)
    if not blocks:
        raise PlanError(f"{folder} has no mixture of experts in its trace")
    losses = summary["losses"]
    found = {"run": folder.name, "gate": blocks[0]["gate"], "causal": all(b["causal"] for b in blocks)}
    found |= {"loss": float(np.mean(losses[-max(1, round(END * len(losses))) :])), "held_out": summary["held_out_loss"]}
    for name in COLUMNS:
        known = [b["end"][name] for b in blocks if b["end"][name] is not None]
        found[name] = float(np.mean(known)) if known else None
    by_block = loads(opened)
    every = [measures(load) for load in by_block]
    course = {name: np.mean([m[name] for m in every], axis=0) for name in ("imbalance", "drop_rate")}
    return {**found, "steps": by_block[0].steps, "course": course}


def finding(found: Sequence[dict[str, Any]]) -> str:
    """The most even and the least, at the end, and who drops most."""
    order = sorted((r for r in found if r["imbalance"] is not None), key=lambda r: r["imbalance"])
    most = max(found, key=lambda r: r["drop_rate"] or 0.0)
    even, uneven = order[0], order[-1]
    return (
        f"At the end the busiest expert has {even['imbalance']:.2f} times the mean with {even['gate']}, "
        f"{uneven['imbalance']:.2f} times with {uneven['gate']}; {most['gate']} drops most ({100 * (most['drop_rate'] or 0.0):.0f} %)"
    )


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a run; what is not known is -."""
    lines = [
        [
            r["run"],
            r["gate"] or "-",
            "yes" if r["causal"] else "no",
            *(script.number(r[n], "{:.4f}") for n in ("loss", "held_out")),
            *(script.number(r[n], *look) for n, look in COLUMNS.items()),
        ]
        for r in found
    ]
    return script.markdown(HEAD, lines, 3)


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """max/mean of the tokens and the share that is dropped, step by step, means over blocks; lines differ in stroke and lightness."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 5), layout="constrained")
    above, below = picture.subplots(2, 1, sharex=True)
    for i, r in enumerate(found):
        look = {"linestyle": STYLES[i % 4], "color": COLOURS[i % 4], "linewidth": 1.2 + 0.4 * (i % 2)}
        for axes, name, factor in ((above, "imbalance", 1), (below, "drop_rate", 100)):
            axes.plot(r["steps"], factor * r["course"][name], label=r["run"], **look)
    above.set_ylabel("tokens of the busiest\nexpert / mean")
    above.set_ylim(bottom=0.9)
    below.set_ylabel("dropped, %")
    below.set_ylim(bottom=-2.0)
    below.set_xlabel("step")
    above.legend(frameon=False, ncols=4, fontsize=9)
    picture.suptitle(finding(found), fontsize=10)
    save(picture, path)


if __name__ == "__main__":
    script.main(script.this())
