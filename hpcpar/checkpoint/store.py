"""Write a checkpoint: parts into a temporary folder, which gets its name when it is whole.

    .step00000100.tmp/part00000.bin, part00001.bin, ...   every rank its own
    .step00000100.tmp/manifest.json                       one rank, when all parts are there
    step00000100/                                         by one rename

A crash or a full disk on the way leaves the checkpoints before it as they were. What is written is flushed to the disk before
the rename, and the folder after it. Nothing here speaks to other ranks: who gathers the entries must also see that all are there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.checkpoint.boxes import box_of, extent, times_covered
from hpcpar.checkpoint.manifest import FORMAT, NAME, complete, encode, step_name, step_of, steps

ALIGN = 64  # bytes; a part can be mapped as an array of any type
BLOCK = 1 << 24  # bytes written and summed together

Tensor = tuple[str, str, Sequence[int], Sequence[slice], np.ndarray]  # kind, name, global shape, slices, values


def prepare(folder: str | Path, step: int) -> Path:
    """Make the temporary folder of a step, empty, and return its path; raises OSError where that cannot be written.

    What an earlier run left unfinished is removed: a folder of checkpoints has one writing run at a time.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in [*folder.glob(".step*.tmp"), *folder.glob(".step*.old")]:
        shutil.rmtree(left)
    tmp = folder / f".{step_name(step)}.tmp"
    tmp.mkdir()
    return tmp


def discard(tmp: str | Path) -> None:
    """Remove a temporary folder after a failed write; the space is free for the next checkpoint."""
    shutil.rmtree(tmp)


def write_part(tmp: str | Path, rank: int, tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Write what a rank owns to one file, flushed to the disk, and return the entry that `commit` needs.

    A tensor is (kind, name, global shape, slices, values): the values, of the shape of the slices, of the global array.
    Raises ValueError where they do not fit, OSError where the disk is full or cannot be written.
    """
    name = f"part{rank:05d}.bin"
    checksum, held = hashlib.sha256(), []
    with open(Path(tmp) / name, "wb") as file:
        for kind, tensor, shape, slices, values in tensors:
            box = box_of(slices, shape)
            if values.shape != extent(box):
                raise ValueError(f"{kind} {tensor}: values {values.shape} for slices {box} of {tuple(shape)}")
            values = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(values.shape)
            gap = bytes(-file.tell() % ALIGN)
            file.write(gap)
            checksum.update(gap)
            about = {"shape": [int(n) for n in shape], "dtype": values.dtype.str, "offset": file.tell(), "slices": [list(b) for b in box]}
            held.append({"kind": kind, "name": tensor, **about})
            raw = values.reshape(-1).view(np.uint8).data
            for at in range(0, len(raw), BLOCK):
                file.write(raw[at : at + BLOCK])
                checksum.update(raw[at : at + BLOCK])
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return {"file": name, "sha256": checksum.hexdigest(), "bytes": size, "tensors": held}


def commit(tmp: str | Path, entries: Iterable[dict[str, Any]], **fields: Any) -> Path:
    """Write the manifest, give the temporary folder its name and return the final path.

    `entries` are those of all parts; `fields`, of JSON's types, are kept for the reader (updates applied, configuration, ...).
    A checkpoint of the same step is replaced. Raises ValueError where the parts do not hold every element of every
    tensor exactly once, FileNotFoundError or OSError where a part is not there as it was written.
    """
    tmp = Path(tmp)
    step = step_of(tmp.name.removeprefix(".").removesuffix(".tmp"))
    if step is None:
        raise ValueError(f"{tmp} is no folder made by prepare")
    entries = sorted(entries, key=lambda entry: entry["file"])
    for entry in entries:
        with open(tmp / entry["file"], "rb") as file:  # opened, not only asked for: a network file system then looks again
            size = file.seek(0, os.SEEK_END)
        if size != entry["bytes"]:
            raise OSError(f"{tmp / entry['file']} has {size} bytes, {entry['bytes']} were written")
    manifest = {
        "format": FORMAT,
        "step": step,
        "fields": fields,
        "tensors": _tensors(entries),
        "files": {entry["file"]: {"sha256": entry["sha256"], "bytes": entry["bytes"]} for entry in entries},
    }
    with open(tmp / NAME, "wb") as out:
        out.write(encode(manifest))
        out.flush()
        os.fsync(out.fileno())
    _flush_folder(tmp)
    final = tmp.parent / step_name(step)
    old = _aside(final) if final.exists() else None
    os.rename(tmp, final)
    _flush_folder(final.parent)
    if old:
        shutil.rmtree(old)
    return final


def prune(folder: str | Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` complete checkpoints, and what is older than those; returns what was removed."""
    if keep < 1:
        raise ValueError(f"keep = {keep}; at least one checkpoint stays")
    removed, kept = [], 0
    for _, path in steps(folder):
        if kept < keep:
            kept += complete(path)
        else:
            shutil.rmtree(_aside(path))
            removed.append(path)
    return removed


def _tensors(entries: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """{kind: {name: {shape, dtype, parts}}}, every tensor checked to be whole."""
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for t in entry["tensors"]:
            about = {"shape": t["shape"], "dtype": t["dtype"]}
            known = found.setdefault(t["kind"], {}).setdefault(t["name"], {**about, "parts": []})
            if {**known, **about} != known:
                raise ValueError(f"{t['kind']} {t['name']}: {entry['file']} has {about}, an earlier part {known['shape']} {known['dtype']}")
            known["parts"].append({"file": entry["file"], "offset": t["offset"], "slices": t["slices"]})
    for kind, tensors in found.items():
        for name, t in tensors.items():
            box = tuple((0, n) for n in t["shape"])
            least, most = times_covered(box, [tuple((a, b) for a, b in part["slices"]) for part in t["parts"]])
            if (least, most) != (1, 1):
                raise ValueError(f"{kind} {name} {t['shape']}: {len(t['parts'])} parts hold an element {least} to {most} times, not once")
    return found


def _aside(path: Path) -> Path:
    """Rename a checkpoint that goes, so that a crash while it is removed leaves nothing of a checkpoint's name."""
    old = path.parent / f".{path.name}.old"
    if old.exists():
        shutil.rmtree(old)
    os.rename(path, old)
    return old


def _flush_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
