"""Why stages should not hold equally many blocks: a model with a costly head, cut evenly and by the partition.

    python analysis/uneven.py RUN RUN ... [--png F]               runs of pipelines that differ in plan.pp and plan.stages
    python analysis/uneven.py --make [--out DIR] [--steps N] [--png F]      about a minute on two cores

The model is profiled on this machine and partitioned without replicas. Every cut is then timed three times: by the clock of 1F1B with the
profile's times, by ranks that sleep those times while all messages, sums and updates are real, and, on two ranks, by plain training.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import runs
import script

from hpcpar import config, trace
from hpcpar.analyse.steps import steps as steps_of
from hpcpar.draw.saving import save
from hpcpar.errors import PlanError
from hpcpar.layer_times import LayerTimes
from hpcpar.measure.profile import profile
from hpcpar.nn.describe import cut_stages
from hpcpar.plan.costs import Layers, Level
from hpcpar.plan.partition import partition
from hpcpar.plan.predict import stage_times, step_timing

STEPS = 12
DESCRIPTION: dict[str, Any] = {
    "model": {"layers": 6, "width": 128, "heads": 4, "vocabulary": 4096, "context": 64, "tied": False},
    "plan": {"schedule": "1f1b", "microbatches": 8},
    "train": {"batch": 32},
    "data": {"held_out": 0.0},
    "run": {"threads": 1},
}
RANKS = (2, 4)
MEASURED_RANKS = 2  # as many as there are cores
WARM_UP = 2  # steps
TIMES = ("slowest_s", "predicted_s", "emulated_s", "measured_s")


def make(folder: Path, steps: int) -> list[Path]:
    """Profile and partition; then each cut asleep, and awake where there are cores for it."""
    folder.mkdir(parents=True, exist_ok=True)
    described = config.build(DESCRIPTION)
    times = profile(described)
    times.write(folder / "profile.toml")
    asleep = {"emulate": {"profile": str((folder / "profile.toml").resolve())}}
    made = []
    for ranks in RANKS:
        for name, blocks in cuts(described, times, ranks):
            tables = {**DESCRIPTION, "plan": {**DESCRIPTION["plan"], "pp": ranks, "stages": blocks}}
            made.append(runs.train(folder, f"asleep {ranks} {name}", {**tables, "train": {**tables["train"], **asleep}}, steps))
            if ranks == MEASURED_RANKS:
                made.append(runs.train(folder, f"awake {ranks} {name}", tables, steps))
    return made


def cuts(described: config.Config, times: LayerTimes, ranks: int) -> list[tuple[str, list[int]]]:
    """(name, transformer blocks a stage) of the even cut and of the partition."""
    even = [sum(layer.kind == "block" for layer in stage) for stage in cut_stages(described.model, "even", ranks)]
    level = Level(ranks, times.machine.copy_bytes_per_s)
    return [("even", even), ("partition", partition(Layers.of(times), (level,), straight=True).blocks)]


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row a cut: ranks, blocks, and the times of a step, s; raises PlanError for a run without a profile beside it."""
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    for folder in folders:
        opened = trace.open(folder)
        described = config.build(opened.description["config"])
        emulate, p = described.train.emulate, described.plan.pp
        blocks = [sum(layer.kind == "block" for layer in stage) for stage in cut_stages(described.model, described.plan.stages, p)]
        even = [sum(layer.kind == "block" for layer in stage) for stage in cut_stages(described.model, "even", p)]
        row = found.setdefault(tuple(blocks), {"ranks": p, "cut": "even" if blocks == even else "partition", "blocks": blocks})
        if emulate and emulate.profile:
            times = LayerTimes.read(emulate.profile)
            by_stage = stage_times(times, blocks)
            row["slowest_s"] = max(sum(t) for t in zip(by_stage.F, by_stage.I, by_stage.W, strict=True))  # type: ignore[arg-type]
            row["predicted_s"] = step_timing(times, described, blocks).makespan
        row["emulated_s" if described.train.asleep else "measured_s"] = statistics.median(steps_of(opened).seconds[WARM_UP:])
    if not any("predicted_s" in r for r in found.values()):
        raise PlanError("none of these runs slept the times of a profile; nothing can be predicted of them")
    return sorted(({**dict.fromkeys(TIMES), **r} for r in found.values()), key=lambda r: (r["ranks"], r["cut"]))


def gain(found: Sequence[dict[str, Any]], ranks: int, name: str) -> float | None:
    """How many times faster the partition is than the even cut; None where one of them is not known."""
    by_cut = {r["cut"]: r[name] for r in found if r["ranks"] == ranks}
    even, cut = by_cut.get("even"), by_cut.get("partition")
    return even / cut if even and cut else None


def finding(found: Sequence[dict[str, Any]]) -> str:
    """What the partition gains, as predicted and as it was."""
    said = []
    for ranks in sorted({r["ranks"] for r in found}):
        known = {n.removesuffix("_s"): g for n in TIMES[1:] if (g := gain(found, ranks, n)) is not None}
        if known:
            said.append(f"on {ranks} ranks " + ", ".join(f"{g:.2f} times {n}" for n, g in known.items()))
    return f"The partition is faster than the even cut: {'; '.join(said) or 'not known'}"


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a cut, ms a step."""
    lines = [[r["cut"], str(r["blocks"]), str(r["ranks"]), *(script.number(r[t], "{:.1f}", 1e3) for t in TIMES)] for r in found]
    return script.markdown(
        ("cut", "blocks a stage", "ranks", "slowest stage, ms", "predicted, ms", "emulated, ms", "measured, ms"), lines, 2
    )


def picture(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Three bars a cut: predicted, emulated, measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, colour, hatch) in enumerate(zip(TIMES[1:], ("#ffffff", "#bcd7f0", "#f2a65a"), ("", "////", ""), strict=True)):
        known = [(k + 0.27 * (i - 1), 1e3 * r[name]) for k, r in enumerate(found) if r[name] is not None]
        axes.bar(
            [x for x, _ in known], [y for _, y in known], 0.25, color=colour, hatch=hatch, edgecolor="black", label=name.removesuffix("_s")
        )
    axes.set_xticks(range(len(found)), [f"{r['cut']}\n{r['blocks']}" for r in found], fontsize=9)
    axes.set_ylabel("ms a step")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(finding(found), fontsize=8)
    save(figure, path)


if __name__ == "__main__":
    script.main(script.this())
