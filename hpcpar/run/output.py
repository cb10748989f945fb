"""The folder of a run: config.toml, metrics.jsonl, summary.json; written by rank 0.

A resumed run keeps the lines of the steps before it, each step once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcpar import config as configuration
from hpcpar.config import Config
from hpcpar.errors import PlanError

METRICS, SUMMARY, CONFIG = "metrics.jsonl", "summary.json", "config.toml"


class Output:
    """Rank 0's files in `folder`; `after` is the step that a resumed run goes on from, None for a new run."""

    def __init__(self, folder: Path, config: Config, after: int | None):
        self.folder = folder
        self.lines: list[dict[str, Any]] = []
        path = folder / METRICS
        if after is not None and path.exists():
            self.lines = [line for line in read_metrics(folder) if line["step"] <= after]
        _replace(path, lambda fresh: fresh.write_text("".join(_text(line) for line in self.lines)))
        self._metrics = path.open("a")
        _replace(folder / CONFIG, lambda fresh: configuration.save(config, fresh))

    def step(self, line: dict[str, Any]) -> None:
        """Append a step's line; it is in the file when this returns."""
        self.lines.append(line)
        self._metrics.write(_text(line))
        self._metrics.flush()

    def summary(self, fields: dict[str, Any]) -> None:
        """Write summary.json, whole or not at all."""
        _replace(self.folder / SUMMARY, lambda fresh: fresh.write_text(json.dumps(_finite(fields), indent=1) + "\n"))

    def sync(self) -> None:
        """The lines so far are on the disk: before a checkpoint that comes after them."""
        os.fsync(self._metrics.fileno())

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()


def losses(lines: list[dict[str, Any]]) -> list[float]:
    """The loss of each step: where workers have lines of their own, over the labels of all of them."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        by_step.setdefault(line["step"], []).append(line)
    return [
        mine[0]["loss"] if len(mine) == 1 else sum(x["loss"] * x["tokens"] for x in mine) / max(1, sum(x["tokens"] for x in mine))
        for mine in by_step.values()
    ]


def tokens_per_s(lines: list[dict[str, Any]], tokens: int) -> float:
    """Tokens a second without the first step, of steps of `tokens`: the sum over workers that have lines of their own."""
    steady = [line for line in lines if line["step"] > lines[0]["step"]] or lines
    seconds: dict[Any, list[float]] = {}
    for line in steady:
        seconds.setdefault(line.get("rank"), []).append(line["seconds"])
    return sum(len(mine) * tokens / len(seconds) / max(1e-9, sum(mine)) for mine in seconds.values())


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last one that was cut short by a kill is left out."""
    out = []
    for text in (folder / METRICS).read_text().splitlines():
        try:
            out.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return out


def refuse_overwriting(folder: Path) -> None:
    """Raise PlanError if the folder holds a run."""
    if (folder / METRICS).exists():
        steps = len((folder / METRICS).read_text().splitlines())
        raise PlanError(f"--out {folder} already holds a run of {steps} steps; use --resume to go on with it, or another folder")


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file whole, or leave what was there."""
    fresh = path.with_name(f".{path.name}.new")
    write(fresh)
    fresh.replace(path)


def _text(line: dict[str, Any]) -> str:
    return json.dumps(_finite(line)) + "\n"


def _finite(value: Any) -> Any:
    """What JSON can hold: a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
