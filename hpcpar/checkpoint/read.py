"""Read a checkpoint under any cut: what overlaps is read, nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.checkpoint.boxes import box_of, extent, inside, overlap, times_covered
from hpcpar.checkpoint.manifest import CheckpointError, load, sizes

WEIGHTS = "weights"  # the kind of the parameters


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A complete checkpoint: tensors by kind ("weights", "adamw.m", ...) and name, `step`, and the `fields` given to commit."""

    path: Path
    step: int
    fields: dict[str, Any]
    tensors: dict[str, dict[str, Any]]

    def kinds(self) -> list[str]:
        """The kinds of tensors, in order."""
        return sorted(self.tensors)

    def names(self, kind: str) -> list[str]:
        """The names of a kind, in order; none for a kind that is not there."""
        return sorted(self.tensors.get(kind, {}))

    def shape(self, kind: str, name: str) -> tuple[int, ...]:
        """The global shape of a tensor; raises CheckpointError where it is not there."""
        return tuple(self._tensor(kind, name)["shape"])

    def dtype(self, kind: str, name: str) -> np.dtype:
        """The type of a tensor's elements; raises CheckpointError where it is not there."""
        return np.dtype(self._tensor(kind, name)["dtype"])

    def read(self, kind: str, name: str, slices: Sequence[slice] | None = None) -> np.ndarray:
        """The values of the slices, one a dim (the whole array if None), in C order.

        Raises CheckpointError where the tensor is not there, a file is damaged in size, or the parts do not cover the slices.
        """
        shape = self.shape(kind, name)
        want = box_of([slice(None)] * len(shape) if slices is None else slices, shape)
        out = np.empty(extent(want), self.dtype(kind, name))
        parts = [(part, tuple((a, b) for a, b in part["slices"])) for part in self._tensor(kind, name)["parts"]]
        least, most = times_covered(want, [box for _, box in parts])
        if (least, most) != (1, 1):
            raise CheckpointError(
                f"{self.path}: the {len(parts)} parts of {kind} {name} {shape} hold elements of {want} {least} to {most} times, not once; "
                "use another step"
            )
        for part, box in parts:
            shared = overlap(want, box)
            if shared is not None:
                out[inside(shared, want)] = self._map(part, out.dtype, extent(box))[inside(shared, box)]
        return out

    def _tensor(self, kind: str, name: str) -> dict[str, Any]:
        try:
            return self.tensors[kind][name]
        except KeyError:
            known = f"{kind} of {len(self.names(kind))} names" if kind in self.tensors else f"the kinds {', '.join(self.kinds())}"
            raise CheckpointError(
                f"{self.path} holds no {kind} {name}; it holds {known}: was it written for this model and optimizer?"
            ) from None

    def _map(self, part: dict[str, Any], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        file = self.path / part["file"]
        try:
            return np.memmap(file, dtype, "r", part["offset"], shape if shape else (1,)).reshape(shape)
        except (OSError, ValueError) as e:
            raise CheckpointError(f"{file} is damaged: no {shape} {dtype} at byte {part['offset']} ({e}); use another step") from None


def open(path: str | Path) -> Checkpoint:
    """Open a checkpoint; raises CheckpointError that names the file where the manifest or a file is missing or has a wrong size.

    The bytes of the parts are not looked at: `open_intact` does that.
    """
    manifest = load(path)
    problems = sizes(path, manifest)
    if problems:
        raise CheckpointError(problems[0])
    return Checkpoint(Path(path), manifest["step"], manifest["fields"], manifest["tensors"])


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """Every parameter of a checkpoint in global form, {name: values}, in name order."""
    found = open(path)
    return {name: found.read(WEIGHTS, name) for name in found.names(WEIGHTS)}


def weights_sha256(path: str | Path) -> str:
    """The sha256 of all parameters of a checkpoint, as `weights_digest`, holding one of them at a time."""
    found = open(path)
    return _digest((name, found.read(WEIGHTS, name)) for name in found.names(WEIGHTS))


def weights_digest(weights: Mapping[str, np.ndarray]) -> str:
    """The sha256 over parameters in name order: the name in UTF-8, the type ("<f4"), the shape ("(4, 6)"), the bytes in C order."""
    return _digest((name, weights[name]) for name in sorted(weights))


def _digest(weights: Iterator[tuple[str, np.ndarray]]) -> str:
    found = hashlib.sha256()
    for name, values in weights:
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(values.shape)
        found.update(name.encode())
        found.update(values.dtype.str.encode())
        found.update(str(values.shape).encode())
        found.update(values.reshape(-1).view(np.uint8).data)
    return found.hexdigest()
