"""Dropout: one mask for every cut, its statistics, its adjoint."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from op_checks import shifted

from hpcpar.ops import dropout

KEY = dropout.key(3, "blocks.1.mlp", 17)


def reference(key, index, rate):
    """The mask of one element in Python's integers."""
    k0, k1 = dropout._keys(key, index >> 32)
    h = dropout._mix_int((dropout._mix_int((index & dropout.M32) ^ k0) + k1) & dropout.M32)
    return h >= round(rate * 2**32)


@pytest.mark.parametrize("first", [0, 5, 2**32 - 20, 7 * 2**32 + 1, 2**45])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mask_is_the_hash_of_key_and_index(first, dtype):
    for forward in (dropout.forward, dropout.forward_array):
        y = forward(np.ones((5, 11), dtype), KEY, first, 0.4)
        expected = np.array([reference(KEY, first + i, 0.4) for i in range(55)]).reshape(5, 11)
        assert y.dtype == dtype and np.array_equal(y != 0, expected) and np.allclose(y[expected], 1 / 0.6, rtol=1e-7)


@settings(max_examples=60, deadline=None)
@given(some.integers(0, 2**34), some.integers(1, 40), some.integers(1, 23), some.data())
def test_same_for_any_cut(first, n, d, data):
    x = np.random.default_rng(n).standard_normal((n, d)).astype(np.float32)
    whole = dropout.forward(x, KEY, first, 0.3)
    a = data.draw(some.integers(0, n - 1))
    b = data.draw(some.integers(a + 1, n))
    piece = dropout.forward(shifted(x[a:b], data.draw(some.integers(0, 15))), KEY, first + a * d, 0.3)
    assert np.array_equal(piece, whole[a:b])
    assert np.array_equal(whole, dropout.forward_array(x, KEY, first, 0.3))


def test_across_the_high_half_of_the_index():
    x, first = np.ones((1, 64)), 2**32 - 30
    whole = dropout.forward(x, KEY, first, 0.5)
    assert np.array_equal(whole[:, 30:], dropout.forward(x[:, 30:].copy(), KEY, 2**32, 0.5))
    assert not np.array_equal(whole[:, 30:], dropout.forward(x[:, 30:].copy(), KEY, 0, 0.5)), "index 2^32 is not index 0"


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rate_and_independence(rate):
    n = 1_000_000
    keep = dropout.forward(np.ones((1000, 1000), np.float32), KEY, 0, rate).reshape(-1) != 0
    sigma = np.sqrt(rate * (1 - rate) / n)
    assert abs(keep.mean() - (1 - rate)) < 4.5 * sigma
    other = dropout.forward(np.ones((1000, 1000), np.float32), dropout.key(3, "blocks.1.mlp", 18), 0, rate).reshape(-1) != 0
    centred, variance = keep - keep.mean(), rate * (1 - rate)
    pairs = [centred[lag:] * centred[:-lag] for lag in (1, 2, 16, 64, 384, 1000, 1024, 65536)] + [centred * (other - other.mean())]
    for product in pairs:
        assert abs(product.mean()) < 5 * variance / np.sqrt(product.size)
    rows = keep.reshape(1000, 1000)
    for sums in (rows.sum(0), rows.sum(1)):
        assert 0.8 < sums.var() / (1000 * variance) < 1.25


def test_expectation_is_x(random):
    x, total = random.standard_normal((3, 5)), np.zeros((3, 5))
    for step in range(4000):
        total += dropout.forward(x, dropout.key(1, "a", step), 0, 0.25)
    assert np.abs(total / 4000 / x - 1).max() < 5 * np.sqrt(0.25 / 0.75 / 4000)


def test_backward_is_the_adjoint(random):
    x, dy = random.standard_normal((2, 9, 7))
    y, dx = dropout.forward(x, KEY, 40, 0.3), dropout.backward_input(dy, KEY, 40, 0.3)
    assert abs((y * dy).sum() - (x * dx).sum()) < 1e-13 and np.array_equal(dx == 0, y == 0)


def test_keys_differ_in_each_of_their_parts():
    keys = {dropout.key(s, n, t) for s in range(5) for n in ("a", "b", "a/1") for t in range(5)}
    assert len(keys) == 75 and all(0 <= k < 2**64 for k in keys)
    assert dropout.key(3, "blocks.1.mlp", 17) == 0x165B52C6FCC6DC36, "the key of a place never changes: runs resume with the masks they had"


def test_rate_zero_copies(random):
    x = random.standard_normal((3, 4))
    y = dropout.forward(x, KEY, 0, 0.0)
    assert np.array_equal(x, y) and y is not x and dropout.forward(x[:0], KEY, 0, 0.5).shape == (0, 4)


def test_strided_input_has_the_mask_of_its_elements(random):
    x = random.standard_normal((6, 8))[:, ::2]
    assert np.array_equal(dropout.forward(x, KEY, 3, 0.5), dropout.forward(x.copy(), KEY, 3, 0.5))
