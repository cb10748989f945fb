"""Is a checkpoint what was written? Every byte is read and summed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hpcpar.checkpoint.manifest import NAME, CheckpointError, load, sizes, step_of, steps
from hpcpar.checkpoint.read import Checkpoint, open


def verify(path: str | Path) -> list[str]:
    """What is wrong with a checkpoint, a line each that names the file; empty where nothing is."""
    try:
        manifest = load(path)
    except CheckpointError as e:
        return [str(e)]
    problems = sizes(path, manifest)
    if problems:
        return problems
    for name, about in sorted(manifest["files"].items()):
        file = Path(path) / name
        try:
            with file.open("rb") as f:
                found = hashlib.file_digest(f, "sha256").hexdigest()
        except OSError as e:
            problems.append(f"{file}: {e.strerror}; use another step")
            continue
        if found != about["sha256"]:
            problems.append(f"{file} is damaged: its sha256 is {found[:16]}, the manifest says {about['sha256'][:16]}; use another step")
    return problems


def open_intact(path: str | Path) -> Checkpoint:
    """Open a checkpoint after reading every byte of it; raises CheckpointError with the first problem."""
    problems = verify(path)
    if problems:
        raise CheckpointError(problems[0])
    return open(path)


def newest_intact(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint without a problem, and what is to be said about newer ones that have some; None if there is none."""
    said: list[str] = []
    for _, path in steps(folder):
        problems = verify(path)
        if not problems:
            return path, said
        said += problems
    return None, said


def find(folder: str | Path) -> tuple[Path, list[str]]:
    """The checkpoint that a folder is, or the newest of a run's folder without a problem, and what is to be said about newer ones.

    Every byte is read. Raises CheckpointError where there is none, or the named one is damaged.
    """
    folder = Path(folder)
    if (folder / NAME).exists() or step_of(folder.name) is not None:
        return open_intact(folder).path, []
    path, said = newest_intact(folder / "checkpoints")
    if path is None:
        why = f" ({said[0]})" if said else ""
        raise CheckpointError(f"{folder} holds no complete checkpoint{why}; name one, or the folder of a run that has one")
    return path, said
