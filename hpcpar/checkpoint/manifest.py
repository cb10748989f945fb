"""What a checkpoint says about itself: manifest.json, with its own checksum, beside the parts.

checkpoints/step00000100/
    manifest.json      {"format", "step", "fields", "tensors": {kind: {name: {"shape", "dtype", "parts"}}}, "files", "sha256"}
    part00000.bin      arrays one behind the other, each from a multiple of 64 bytes
a part of a tensor     {"file", "offset", "slices": [[start, stop], ...]}, C order, little-endian
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError

FORMAT = 1
NAME = "manifest.json"


class CheckpointError(PlanError):
    """A checkpoint is missing, damaged or incomplete; the message names the file."""


def step_name(step: int) -> str:
    """The folder's name of a step; longer than eight digits where it must be."""
    return f"step{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a folder's name; None for other names, those of unfinished checkpoints among them."""
    found = re.fullmatch(r"step(\d{8,})", name)
    return int(found[1]) if found else None


def steps(folder: str | Path) -> list[tuple[int, Path]]:
    """(step, path) of all that has a checkpoint's name, newest first, whatever its state."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = [(step, path) for path in folder.iterdir() if (step := step_of(path.name)) is not None and path.is_dir()]
    return sorted(found, reverse=True)


def encode(manifest: dict[str, Any]) -> bytes:
    """The file's bytes, with the checksum of all the rest."""
    manifest = json.loads(_canonical(manifest))  # what the reader will see: keys are text, tuples are lists
    return _canonical({**manifest, "sha256": hashlib.sha256(_canonical(manifest)).hexdigest()})


def load(path: str | Path) -> dict[str, Any]:
    """The manifest of a checkpoint; raises CheckpointError where it is missing, damaged or of another format."""
    file = Path(path) / NAME
    try:
        raw = file.read_bytes()
    except OSError as e:
        raise CheckpointError(f"{file}: {e.strerror}; {path} is no complete checkpoint, use another step") from None
    try:
        manifest = json.loads(raw)
        checksum = manifest.pop("sha256")
    except (ValueError, AttributeError, KeyError):
        raise CheckpointError(f"{file} ({len(raw)} bytes) is damaged: no JSON with a checksum; use another step") from None
    found = hashlib.sha256(_canonical(manifest)).hexdigest()
    if found != checksum:
        raise CheckpointError(f"{file} is damaged: its sha256 is {found[:16]}, it says {str(checksum)[:16]}; use another step")
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{file} has format {manifest['format']}, known is {FORMAT}; read it with the version that wrote it")
    return manifest


def sizes(path: str | Path, manifest: dict[str, Any]) -> list[str]:
    """What is wrong with the presence and the sizes of a checkpoint's files, a line each."""
    problems = []
    for name, about in sorted(manifest["files"].items()):
        file = Path(path) / name
        try:
            size = file.stat().st_size
        except OSError as e:
            problems.append(f"{file}: {e.strerror}; use another step")
            continue
        if size != about["bytes"]:
            problems.append(f"{file} has {size} bytes, the manifest says {about['bytes']}; use another step")
    return problems


def newest(folder: str | Path) -> Path | None:
    """The newest complete checkpoint of a folder: its manifest can be read and all files have their sizes; None if there is none."""
    return next((path for _, path in steps(folder) if complete(path)), None)


def complete(path: Path) -> bool:
    """Whether the manifest can be read and all files have their sizes; their bytes are not looked at."""
    try:
        return not sizes(path, load(path))
    except CheckpointError:
        return False


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, indent=0, ensure_ascii=False, allow_nan=False).encode()
