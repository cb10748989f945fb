"""Checkpoints of known values for the tests of this folder."""

from pathlib import Path

import numpy as np

from hpcpar import checkpoint
from hpcpar.layout import cut


def array(name: str, shape, dtype="float32") -> np.ndarray:
    """Values that are a function of the name and the global index."""
    return (np.arange(np.prod(shape, dtype=int)) + sum(name.encode())).reshape(shape).astype(dtype)


SHAPES = {"a": (7, 5), "b": (3,), "c": (), "d": (2, 3, 4)}


def write(folder: Path, step: int, ranks: int = 3, add: float = 0.0, **fields) -> Path:
    """A checkpoint of SHAPES: dim 0 of "a" cut unevenly over the ranks, the others owned by one each."""
    tmp = checkpoint.prepare(folder, step)
    entries = []
    for rank in range(ranks):
        held = []
        for kind in ("weights", "adamw.m"):
            rows = cut(7, ranks, rank)
            held.append((kind, "a", (7, 5), (rows, slice(0, 5)), array(kind + "a", (7, 5))[rows] + np.float32(add)))
            for owner, name in enumerate("bcd"):
                if owner % ranks == rank:
                    shape = SHAPES[name]
                    values = array(kind + name, shape, "float64") + add
                    held.append((kind, name, shape, tuple(slice(0, n) for n in shape), values))
        entries.append(checkpoint.write_part(tmp, rank, held))
    return checkpoint.commit(tmp, entries, **fields)
