"""The optimizer passes: the papers' rules, the bits of the array text, the bits of any slice."""

from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from op_checks import shifted

from hpcpar.ops import update

ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "decay": 0.1, "c1": 0.19, "c2": 0.0975, "scale": 0.7}
SGD = {"lr": 0.01, "momentum": 0.9, "decay": 0.1, "scale": 0.7}


def draw(random, n, dtype=np.float64):
    w, g, m, v = (random.standard_normal(n).astype(dtype) for _ in range(4))
    return w, g, m, abs(v)


def test_adamw_is_the_rule(random):
    w, g, m, v = draw(random, 33)
    before = [a.copy() for a in (w, g, m, v)]
    update.adamw(w, g, m, v, **ADAMW)
    for i, (a, b, c, d) in enumerate(zip(*(x.tolist() for x in before), strict=True)):
        b *= 0.7
        c, d = 0.9 * c + 0.1 * b, 0.95 * d + 0.05 * b * b
        a -= 0.01 * ((c / 0.19) / ((d / 0.0975) ** 0.5 + 1e-8) + 0.1 * a)
        assert abs(m[i] - c) + abs(v[i] - d) + abs(w[i] - a) < 1e-14
    assert np.array_equal(g, before[1]), "the gradient is read only"


def test_sgd_is_the_rule(random):
    w, g, m, _ = draw(random, 33)
    before = [a.copy() for a in (w, g, m)]
    update.sgd(w, g, m, **SGD)
    for i, (a, b, c) in enumerate(zip(*(x.tolist() for x in before), strict=True)):
        c = 0.9 * c + 0.7 * b
        assert abs(m[i] - c) + abs(w[i] - (a - 0.01 * (c + 0.1 * a))) < 1e-14
    assert np.array_equal(g, before[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_kernels_have_the_bits_of_the_array_text(random, n, dtype):
    fast, text = draw(random, n, dtype), None
    text = [a.copy() for a in fast]
    for _ in range(3):
        update.adamw(*fast, **ADAMW)
        update.adamw_array(*text, **ADAMW)
        update.sgd(*fast[:3], **SGD)
        update.sgd_array(*text[:3], **SGD)
    assert all(a.dtype == dtype and np.array_equal(a, b) for a, b in zip(fast, text, strict=True))


@settings(max_examples=60, deadline=None)
@given(some.integers(1, 300), some.data())
def test_a_slice_has_the_bits_of_the_whole(n, data):
    whole = draw(np.random.default_rng(n), n, np.float32)
    a = data.draw(some.integers(0, n - 1))
    b = data.draw(some.integers(a + 1, n))
    piece = [shifted(x[a:b], data.draw(some.integers(0, 15))) for x in whole]
    for arrays in (whole, piece):
        update.adamw(*arrays, **ADAMW)
        update.sgd(*arrays[:3], **SGD)
    assert all(np.array_equal(x[a:b], y) for x, y in zip(whole, piece, strict=True))


@settings(max_examples=60, deadline=None)
@given(some.integers(0, 5000), some.integers(0, 15), some.sampled_from([np.float32, np.float64]))
def test_square_sum(n, elements, dtype):
    g = np.random.default_rng(n).standard_normal(n).astype(dtype)
    total = update.square_sum(g)
    assert isinstance(total, float) and total == update.square_sum(shifted(g, elements)) == update.square_sum_array(g)
    assert abs(total - fsum(float(x) ** 2 for x in g)) <= 1e-14 * total


def test_square_sum_order_is_the_documented_one(random):
    g = random.standard_normal(2500)
    sums = [0.0] * 1024
    for i, x in enumerate(g.tolist()):
        sums[i % 1024] += x * x
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [a + b for a, b in zip(sums[:half], sums[half:], strict=True)]
    assert update.square_sum(g) == sums[0]


def test_square_sum_of_large_and_small_values():
    assert update.square_sum(np.full(3, 1e30, np.float32)) == pytest.approx(3e60, rel=1e-6)
    assert update.square_sum(np.full(3, 1e-30, np.float32)) == pytest.approx(3e-60, rel=1e-6)
    assert update.square_sum(np.arange(12.0).reshape(3, 4)[:, ::2]) == 220


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_residual_add(random, dtype):
    a, b = random.standard_normal((2, 7, 9)).astype(dtype)
    expected = a + b
    assert update.add_(a, b) is a and np.array_equal(a, expected)
    wide = np.zeros((7, 18), dtype)
    update.add_(wide[:, ::2], b)
    assert np.array_equal(wide[:, ::2], b) and not wide[:, 1::2].any()


def test_zero_gradients_at_the_first_step():
    w, g, m, v = np.ones(5), np.zeros(5), np.zeros(5), np.zeros(5)
    update.adamw(w, g, m, v, **(ADAMW | {"decay": 0.0}))
    assert np.array_equal(w, np.ones(5)) and not m.any() and not v.any()


def test_sizes_that_differ_are_refused(random):
    w, g, m, v = draw(random, 9)
    for short in ((w, g[:5], m, v), (w, g, m, v[:5]), (w, g.astype(np.float32), m, v)):
        with pytest.raises(ValueError, match="one shape and dtype"):
            update.adamw(*short, **ADAMW)
    with pytest.raises(ValueError, match="one shape and dtype"):
        update.sgd(w, g, m[:5], **SGD)
    with pytest.raises(ValueError, match="one shape and dtype"):
        update.add_(w, g[:1])
