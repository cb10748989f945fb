"""Random numbers by global index: the same for any cut; uniform and normal as they say; the normal distribution to rounding."""

import math

import numpy as np
import pytest

from hpcpar.ops import dropout, noise

KEY = dropout.key(3, "blocks.1.moe.noise", 17)


@pytest.mark.parametrize("draw", [noise.uniform, lambda *a: noise.normal(*a, "float64")], ids=["uniform", "normal"])
def test_same_for_any_cut(draw):
    for first in (0, 12345, 2**32 - 30):
        whole = draw(np, KEY, first, (12, 5))
        assert np.array_equal(whole[7:], draw(np, KEY, first + 35, (5, 5)))
        assert not np.array_equal(whole, draw(np, KEY + 1, first, (12, 5)))


def test_distributions():
    n = 200_000
    u, z = noise.uniform(np, KEY, 0, (n,)), noise.normal(np, KEY, 0, (n,), "float64")
    assert u.min() > 0 and u.max() < 1
    for x, cdf in ((u, np.sort(u)), (z, noise.distribution(np.sort(z)))):
        distance = np.abs(cdf - (np.arange(n) + 0.5) / n).max()
        assert distance < 1.95 / math.sqrt(n), f"Kolmogorov and Smirnov at 0.1 %: {distance}, {x[:3]}"
    for lag in (1, 2, 5, 8, 64):
        assert abs((z[lag:] * z[:-lag]).mean()) < 4.5 / math.sqrt(n)
    assert noise.normal(np, KEY, 0, (3,), "float32").dtype == np.float32


def test_the_normal_distribution_and_its_density():
    x = np.concatenate([np.linspace(-12, 12, 2001), [0.0, 1e-9, 40.0, -40.0]])
    want = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])
    assert np.abs(noise.distribution(x) - want).max() < 1e-14
    assert np.abs(noise.density(x) - np.exp(-x * x / 2) / math.sqrt(2 * math.pi)).max() < 1e-16
    assert noise.distribution(x.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moved_rows_keep_their_dropout(dtype):
    """Row a has the mask of the elements numbers[a] 2^32 + f."""
    numbers = np.array([5, 0, 7, 4_000_000_000, 5])
    x = np.random.default_rng(2).standard_normal((5, 33)).astype(dtype)
    y = dropout.rows(x, KEY, numbers, 0.4)
    for a, number in enumerate(numbers.tolist()):
        assert np.array_equal(y[a : a + 1], dropout.forward(x[a : a + 1], KEY, number << 32, 0.4))
    assert np.array_equal(y, dropout.rows_array(x, *dropout._row_keys(KEY, numbers.astype(np.uint32)), 0.4))
    assert 0.3 < (dropout.rows(np.ones((1000, 100), dtype), KEY, np.arange(1000), 0.4) == 0).mean() < 0.5
    for first in (1, 20):  # a cut of the columns has its part of the mask
        assert np.array_equal(dropout.rows(x[:, first:], KEY, numbers, 0.4, first), y[:, first:])
    same = dropout.rows(x, KEY, numbers, 0.0)
    assert np.array_equal(same, x) and same is not x
