"""What codecs are made of, without messages: the largest elements, thin factors, what is owed; and the outer step of DiLoCo."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcpar.parallel.compress
from hpcpar.parallel.compress import CODECS, Codec, Memory
from hpcpar.parallel.compress.powersgd import factored, first_factor, orthonormal, sent
from hpcpar.parallel.compress.top_k import kept, largest
from hpcpar.parallel.outer import Outer


def test_every_codec_is_in_its_registry() -> None:
    modules = [
        importlib.import_module(f"hpcpar.parallel.compress.{m.name}") for m in pkgutil.iter_modules(hpcpar.parallel.compress.__path__)
    ]
    classes = {x for module in modules for x in vars(module).values() if isinstance(x, type) and issubclass(x, Codec) and x is not Codec}
    assert classes and classes == set(CODECS.values())


VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-300, -1e300, np.inf, -np.inf, np.nan])


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_the_largest_are_those_of_a_sort(values: list[float], share: float) -> None:
    x = np.array(values)
    k = max(1, round(share * x.size))
    size = [np.inf if np.isnan(v) else abs(v) for v in values]
    want = sorted(sorted(range(x.size), key=lambda i: (-size[i], i))[:k])
    assert largest(x, k).tolist() == want


def test_at_least_one_element_is_kept() -> None:
    assert [kept(n, 0.01) for n in (1, 2, 100, 1000, 12345)] == [1, 1, 1, 10, 123]
    assert kept(7, 1.0) == 7


def test_memory_forgets_a_step_that_was_skipped() -> None:
    memory = Memory(4, np, "float64")
    memory.due(np.array([1.0, 2.0]), 1, 3)
    memory.settle(False)
    assert not memory.owed.any()
    due = memory.due(np.array([1.0, 2.0]), 1, 3)
    due[0] = 0.0  # sent
    memory.settle(True)
    assert memory.owed.tolist() == [0, 0, 2, 0]
    assert memory.due(np.array([1.0, 1.0]), 2, 4).tolist() == [3, 1]
    assert memory.nbytes == 2 * 4 * 8


def test_factors_are_smaller_than_the_matrix() -> None:
    shapes = {"wide": (30, 40), "vector": (30,), "narrow": (5, 4), "edge": (4, 4)}
    assert [n for n in shapes if factored(shapes[n], 2)] == ["wide", "narrow"]
    assert sent(shapes, 2) == 70 * 2 + 30 + 9 * 2 + 16
    assert sent(shapes, 40) == 1200 + 30 + 20 + 16


def test_first_factors_come_from_seed_and_name() -> None:
    q = first_factor("a", 6, 3, 1)
    assert q.shape == (6, 3) and np.array_equal(q, first_factor("a", 6, 3, 1))
    assert not np.array_equal(q, first_factor("b", 6, 3, 1)) and not np.array_equal(q, first_factor("a", 6, 3, 2))


@pytest.mark.parametrize("columns", ["zero", "dependent", "tiny", "random"])
def test_a_projection_whatever_the_columns(columns: str) -> None:
    p = np.random.default_rng(3).standard_normal((9, 3))
    if columns == "zero":
        p[...] = 0
    if columns == "dependent":
        p[:, 2] = p[:, 0] - 2 * p[:, 1]
    if columns == "tiny":
        p *= 1e-200
    basis = orthonormal(p)
    assert np.allclose(basis.T @ basis, np.eye(3), atol=1e-14)
    assert np.allclose(basis @ (basis.T @ p), p, rtol=1e-12, atol=1e-14 * np.abs(p).max())


def test_the_outer_step_is_the_textbooks() -> None:
    """Nesterov's momentum as stochastic gradient descent has it, over four periods."""
    rng, outer = np.random.default_rng(1), Outer(0.7, 0.9)
    w = rng.standard_normal(5)
    want, v, b = w.copy(), np.zeros(5), np.zeros(5)
    for _ in range(4):
        start, mean = w.copy(), rng.standard_normal(5)
        w = mean.copy()
        outer.apply(w, start, v)
        g = want - mean
        b = 0.9 * b + g
        want = want - 0.7 * (g + 0.9 * b)
        assert np.allclose(w, want, rtol=1e-13, atol=1e-14) and np.allclose(v, b, rtol=1e-13, atol=1e-14)


def test_rate_one_without_momentum_is_the_mean_to_the_bit() -> None:
    mean, start = np.random.default_rng(2).standard_normal((2, 100))
    w = mean.copy()
    Outer(1.0, 0.0).apply(w, start, np.zeros(100))
    assert np.array_equal(w, mean) and Outer(1.0, 0.0).is_mean
    assert not Outer(0.9, 0.0).is_mean and not Outer(1.0, 0.1).is_mean
