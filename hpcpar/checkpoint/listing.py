"""What checkpoints a folder holds, and in what state."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcpar.checkpoint.manifest import NAME, CheckpointError, load, sizes, steps
from hpcpar.checkpoint.verify import verify


@dataclass(frozen=True)
class Listed:
    """One checkpoint: its size on the disk, what it says about itself, and what is wrong with it, a line each that names the file."""

    path: Path
    step: int
    bytes: int
    files: int
    config: dict[str, Any]  # as saved; empty where the manifest cannot be read
    kinds: tuple[str, ...]  # of tensors
    problems: tuple[str, ...]

    def report(self) -> dict[str, Any]:
        """The same in JSON's types."""
        train = self.config.get("train", {})
        return {
            "path": str(self.path),
            "step": self.step,
            "bytes": self.bytes,
            "files": self.files,
            "plan": self.config.get("plan"),
            "precision": train.get("precision"),
            "optimizer": train.get("optimizer") if len(self.kinds) > 1 else None,
            "complete": not self.problems,
            "problems": list(self.problems),
        }


def listing(folder: Path, every_byte: bool) -> list[Listed]:
    """The checkpoints of a run's folder, or the one that the folder is, newest first, what was never finished last.

    `every_byte` compares checksums too. Empty for a folder without any.
    """
    if (folder / NAME).exists():
        found = re.fullmatch(r"step(\d+)", folder.resolve().name)
        return [_listed(folder, int(found[1]) if found else -1, every_byte)]
    inside = folder / "checkpoints"
    whole = [_listed(path, step, every_byte) for step, path in steps(inside)]
    return whole + [_unfinished(path) for path in sorted(inside.glob(".step*.tmp"))]


def _listed(path: Path, step: int, every_byte: bool) -> Listed:
    on_disk = [f.stat().st_size for f in path.iterdir() if f.is_file()]
    try:
        manifest = load(path)
    except CheckpointError as e:
        return Listed(path, step, sum(on_disk), len(on_disk), {}, (), (str(e),))
    problems = verify(path) if every_byte else sizes(path, manifest)
    kinds = tuple(sorted(manifest["tensors"]))
    return Listed(path, manifest["step"], sum(on_disk), len(on_disk), manifest["fields"].get("config", {}), kinds, tuple(problems))


def _unfinished(path: Path) -> Listed:
    on_disk = [f.stat().st_size for f in path.iterdir() if f.is_file()]
    step = int(path.name.removeprefix(".step").removesuffix(".tmp"))
    why = f"{path} was never finished: the run ended while it saved; the next save removes it"
    return Listed(path, step, sum(on_disk), len(on_disk), {}, (), (why,))
