"""Every operation gives the same on the GPU as on the CPU, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, attention_blocks, attentions, dropouts, embeddings

import hpcpar.ops
from hpcpar.ops import attention

TOLERANCE = {"float64": 1e-12, "float32": 2e-5}  # of the largest element; the order of sums differs
PLAIN = {"array", "warm"}  # no operations


def to_cpu(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.get()


def on_gpu(x: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("case", "tile"),
    [*((c, attention.DEVICE_TILE) for c in CASES), (attentions, 8), (attention_blocks, 8)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_same_on_both(case: Any, tile: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(attention, "DEVICE_TILE", tile)
    expected = case(lambda x: x, dtype)
    found = case(on_gpu, dtype)
    assert found.keys() == expected.keys()
    for name, a in expected.items():
        b = found[name]
        assert isinstance(b, cupy.ndarray) or a.ndim == 0, f"{name} left the GPU"
        b = to_cpu(b)
        assert b.shape == a.shape and b.dtype == a.dtype, (name, a.dtype, b.dtype)
        assert np.isfinite(a).all(), name
        worst = np.max(np.abs(b - a), initial=0) / max(np.max(np.abs(a), initial=0), 1e-30)
        assert worst <= TOLERANCE[dtype] or np.array_equal(a, b), f"{name}: {worst:.2g}"


def test_every_operation_has_a_case() -> None:
    files = {p.stem for p in Path(hpcpar.ops.__file__).parent.glob("*.py")} - {"__init__"} - PLAIN
    assert files == {name for covered in CASES.values() for name in covered}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_embedding_gradients_are_the_same_bits_every_time(dtype: str) -> None:
    first, second = embeddings(on_gpu, dtype), embeddings(on_gpu, dtype)
    assert all(np.array_equal(to_cpu(first[name]), to_cpu(second[name])) for name in first)


def test_dropout_masks_are_those_of_the_cpu() -> None:
    here, there = dropouts(lambda x: x, "float64"), dropouts(on_gpu, "float64")
    assert all(np.array_equal(a == 0, to_cpu(there[name]) == 0) for name, a in here.items())
    assert sum(int((a == 0).sum()) for a in here.values()) > 0
