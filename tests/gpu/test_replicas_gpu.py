"""Compressed gradients and local SGD on the GPU are the CPU's: the array code of the codecs, and runs of two ranks that share the GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_train_gpu import CONFIG, TOLERANCE, hpcpar

from hpcpar.measure import launcher_facts
from hpcpar.parallel.average import Average
from hpcpar.parallel.compress import Memory
from hpcpar.parallel.compress.powersgd import orthonormal
from hpcpar.parallel.compress.top_k import largest
from hpcpar.parallel.outer import Outer

MODES = {
    "float16": ["plan.sync.compress=float16"],
    "top-k": ["plan.sync.compress=top-k", "plan.sync.keep=0.1", "plan.sync.bucket_mb=0.01"],
    "powersgd": ["plan.sync.compress=powersgd", "plan.sync.rank=2"],
    "diloco": ["plan.sync.mode=local", "plan.sync.every=2", "plan.sync.outer_rate=0.7", "plan.sync.outer_momentum=0.9"],
}


def on_gpu(x: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_the_same_elements_are_the_largest(dtype: str, k: int) -> None:
    x = np.random.default_rng(4).integers(-9, 10, 40).astype(dtype)  # with ties
    x[[3, 20]] = np.nan, -np.inf
    assert largest(on_gpu(x), k).get().tolist() == largest(x, k).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_projection(dtype: str) -> None:
    p = np.random.default_rng(5).standard_normal((30, 4)).astype(dtype)
    there, here = orthonormal(on_gpu(p)), orthonormal(p)
    assert there.dtype == here.dtype
    assert np.abs((there @ there.T).get() - here @ here.T).max() <= {"float32": 1e-5, "float64": 1e-12}[dtype]
    assert np.isfinite(orthonormal(on_gpu(0 * p)).get()).all()


def test_memory_and_the_outer_step_stay_on_the_device() -> None:
    import cupy

    memory = Memory(5, cupy, "float32")
    memory.due(on_gpu(np.ones(3, np.float32)), 1, 4)[:1] = 0
    memory.settle(True)
    assert memory.owed.get().tolist() == [0, 0, 1, 1, 0]
    w, start, v = np.random.default_rng(6).standard_normal((3, 9))
    there = [on_gpu(a) for a in (w, start, v)]
    Outer(0.7, 0.9).apply(*there)
    Outer(0.7, 0.9).apply(w, start, v)
    assert np.allclose(there[0].get(), w, rtol=1e-14) and np.allclose(there[2].get(), v, rtol=1e-14)
    average = Average(2, cupy, "float64", None, 0, Outer(1.0, 0.0))  # type: ignore[arg-type]  # refused before anything is sent
    with pytest.raises(FloatingPointError):
        average.start(on_gpu(np.array([1.0, np.nan])), 1.0)


@pytest.mark.skipif(launcher_facts.find() is None, reason="no mpiexec")
@pytest.mark.parametrize("aware", ["no", "direct"])
@pytest.mark.parametrize("mode", MODES)
def test_same_run_on_both(tmp_path: Path, mode: str, aware: str) -> None:
    if aware == "direct":
        import cupy

        aware = "yes" if hasattr(cupy, "_state") else "auto"
    source = tmp_path / "text.txt"
    source.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    sets = [w for s in MODES[mode] for w in ("--set", s)]
    for where in ("cpu", "cuda"):
        (tmp_path / f"{where}.toml").write_text(CONFIG.format(pp=1, dp=2, cp=1, tp=1, source=source, where=where, aware=aware))
        child = hpcpar("train", str(tmp_path / f"{where}.toml"), "--out", str(tmp_path / where), *sets, ranks=2)
        assert child.returncode == 0, child.stdout + child.stderr
    child = hpcpar("compare", str(tmp_path / "cpu"), str(tmp_path / "cuda"), "--json")
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert all(found[k] <= 100 * TOLERANCE for k in ("loss", "grad_norm", "weights")), found
