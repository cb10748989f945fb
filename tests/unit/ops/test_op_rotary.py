"""Rotary embedding: the written formula, the adjoint law, strided heads, bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from op_checks import distance

from hpcpar.errors import PlanError
from hpcpar.ops import rotary


def by_hand(x, positions, base=10000.0):
    y, half = np.empty_like(x), x.shape[3] // 2
    for t, position in enumerate(positions):
        for j in range(half):
            angle = position * base ** (-2 * j / x.shape[3])
            a, b = x[:, t, :, j], x[:, t, :, j + half]
            y[:, t, :, j] = a * np.cos(angle) - b * np.sin(angle)
            y[:, t, :, j + half] = b * np.cos(angle) + a * np.sin(angle)
    return y


@pytest.mark.parametrize("b,t,h,k", [(3, 5, 3, 4), (1, 1, 1, 2), (2, 7, 1, 6), (1, 33, 2, 64)])
@pytest.mark.parametrize("apply", [rotary.apply, rotary.apply_array])
def test_formula(random, b, t, h, k, apply):
    x, positions = random.standard_normal((b, t, h, k)), np.arange(4, 4 + t)
    expected = by_hand(x, positions)
    assert apply(x, rotary.tables(positions, k, dtype="float64")) is x
    assert distance(x, expected) < 1e-14


@settings(max_examples=40, deadline=None)
@given(some.integers(1, 3), some.integers(1, 40), some.integers(1, 3), some.integers(1, 9), some.integers(0, 2**31))
def test_adjoint_and_inverse(b, t, h, half, seed):
    random = np.random.default_rng(seed)
    x, y = random.standard_normal((2, b, t, h, 2 * half))
    table = rotary.tables(random.integers(0, 5000, t), 2 * half, dtype="float64")
    ax, ay = rotary.apply(x.copy(), table), rotary.apply_inverse(y.copy(), table)
    assert abs((ax * y).sum() - (x * ay).sum()) < 1e-12 * np.sqrt((x * x).sum() * (y * y).sum())
    assert distance(rotary.apply_inverse(ax, table), x) < 1e-14


def test_scores_depend_on_the_distance_of_positions_only(random):
    q, k = random.standard_normal((2, 1, 1, 1, 8))

    def score(i, j):
        a = rotary.apply(q.copy(), rotary.tables(np.array([i]), 8, dtype="float64"))
        return float((a * rotary.apply(k.copy(), rotary.tables(np.array([j]), 8, dtype="float64"))).sum())

    assert abs(score(5, 3) - score(105, 103)) < 1e-12 and abs(score(5, 3) - score(5, 4)) > 1e-3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_heads_of_a_fused_array_are_turned_and_the_rest_is_left(random, dtype):
    fused = random.standard_normal((2, 33, 7, 6)).astype(dtype)
    before, table = fused.copy(), rotary.tables(np.arange(33), 6, dtype=dtype)
    rotary.apply(fused[:, :, 2:5], table)
    alone = np.ascontiguousarray(before[:, :, 2:5])
    assert np.array_equal(fused[:, :, 2:5], rotary.apply(alone, table)), "the stride changes no bit"
    assert np.array_equal(fused[:, :, :2], before[:, :, :2]) and np.array_equal(fused[:, :, 5:], before[:, :, 5:])
    expected = rotary.apply_array(before[:, :, 2:5].astype(np.float64), rotary.tables(np.arange(33), 6, dtype="float64"))
    assert distance(fused[:, :, 2:5], expected) < (3e-7 if dtype == np.float32 else 1e-15)


def test_elements_that_are_not_side_by_side(random):
    x = random.standard_normal((6, 2, 5, 3)).transpose(1, 2, 3, 0)
    expected = by_hand(x, range(5))
    assert distance(rotary.apply(x, rotary.tables(np.arange(5), 6, dtype="float64")), expected) < 1e-14


def test_a_piece_of_the_sequence_is_turned_as_in_the_whole(random):
    x = random.standard_normal((2, 20, 3, 4)).astype(np.float32)
    piece = x[:, 13:17].copy()
    rotary.apply(x, rotary.tables(np.arange(20), 4))
    assert np.array_equal(rotary.apply(piece, rotary.tables(np.arange(13, 17), 4)), x[:, 13:17])


def test_far_positions_keep_their_digits():
    cos, sin = rotary.tables(np.array([1_000_000]), 4)
    assert cos.dtype == np.float32 and abs(float(cos[0, 0]) - np.cos(1e6)) < 1e-7 and abs(float(sin[0, 1]) - np.sin(1e4)) < 1e-7


def test_refused():
    with pytest.raises(PlanError, match="width 5"):
        rotary.tables(np.arange(3), 5)
    with pytest.raises(ValueError, match="do not fit"):
        rotary.apply(np.ones((1, 4, 1, 4), np.float32), rotary.tables(np.arange(3), 4))
