"""The safetensors format: a header that says where each array lies, then the arrays.

    8 bytes     n, little-endian
    n bytes     JSON {name: {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}, ...}, filled up with spaces to a multiple of 8
    the rest    arrays in C order, little-endian, one behind the other without a gap; offsets count from here

Written here and not with the library of that name, which judges it in the tests: one array at a time is in memory, and brain floats, which
NumPy does not have, are read. The format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.checkpoint.manifest import CheckpointError

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # BF16 is the upper half of an F32
NAMES = {np.dtype(kind): name for name, kind in TYPES.items() if name != "BF16"}
METADATA = "__metadata__"

About = tuple[np.dtype, tuple[int, ...]]  # type and shape


def write(path: str | Path, tensors: Mapping[str, About], read: Callable[[str], np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write the tensors in their order to a new file; `read` gives the values of one at a time.

    The file has its name when it is whole and on the disk. Raises OSError where it cannot be written.
    """
    path = Path(path)
    header: dict[str, Any] = {METADATA: dict(metadata)}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    fresh = path.with_name(f".{path.name}.tmp")
    try:
        with open(fresh, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for name, (dtype, shape) in tensors.items():
                values = read(name)
                if values.shape != shape or values.dtype != dtype:
                    raise ValueError(f"{name}: {values.dtype} {values.shape} where {dtype} {shape} was announced")
                file.write(np.ascontiguousarray(values, dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


class File:
    """The tensors of a file by name; raises CheckpointError that names the file where it is damaged."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            with open(self.path, "rb") as file:
                n = int.from_bytes(file.read(8), "little")
                raw = file.read(n) if n <= size - 8 else b""
            self.about: dict[str, dict[str, Any]] = json.loads(raw)
            self.about.pop(METADATA, None)
            self._start = 8 + n
            for name, of in self.about.items():
                start, stop = of["data_offsets"]
                if of["dtype"] in TYPES and stop - start != prod(of["shape"]) * np.dtype(TYPES[of["dtype"]]).itemsize:
                    raise CheckpointError(f"{self.path} is damaged: {name} {of['shape']} has {stop - start} bytes; get the file again")
                if not 0 <= start <= stop <= size - self._start:
                    raise CheckpointError(
                        f"{self.path} is cut short: {name} ends at byte {self._start + stop} of {size}; get the file again"
                    )
        except OSError as e:
            raise CheckpointError(f"{self.path}: {e.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{self.path} has no header of safetensors; get the file again, or name another") from None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self.about[name]["shape"])

    def dtype(self, name: str) -> str:
        """The name of a tensor's type, as "F32"; raises CheckpointError for one that holds no weights."""
        kind = self.about[name]["dtype"]
        if kind not in TYPES:
            raise CheckpointError(f"{self.path}: {name} is {kind}; weights are {', '.join(TYPES)}")
        return kind

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor; brain floats as float32."""
        kind, shape = self.dtype(name), self.shape(name)
        start = self._start + self.about[name]["data_offsets"][0]
        if not prod(shape):
            return np.zeros(shape, "<f4" if kind == "BF16" else TYPES[kind])
        with open(self.path, "rb") as file:
            file.seek(start)
            values = np.fromfile(file, TYPES[kind], prod(shape)).reshape(shape)
        return (values.astype("<u4") << 16).view("<f4") if kind == "BF16" else values
