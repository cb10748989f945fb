"""Grouped products and the ways of tokens to experts and back: against naive twins, by adjoints, with empty experts."""

import numpy as np
import pytest
from op_checks import differences, distance

from hpcpar.ops import grouped, permute


def near(a, b, tolerance):
    """Whether the largest difference is small beside the larger of 1 and the largest value."""
    return a.shape == b.shape and np.abs(a - b).max(initial=0) <= tolerance * max(1, np.abs(b).max(initial=0))


COUNTS = [(3, 0, 4, 1), (0, 0, 0, 9), (5, 5, 5), (0,), (7,), (0, 2, 0)]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("shape", [(5,), (2, 5)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_grouped_is_one_linear_an_expert(random, counts, shape, bias):
    e, n = len(counts), sum(counts)
    x, w = random.standard_normal((n, 6)), random.standard_normal((e, *shape, 6))
    b = random.standard_normal((e, *shape)) if bias else None
    of = np.repeat(np.arange(e), counts)
    y, saved = grouped.forward(x, counts, w, b)
    flat = w.reshape(e, -1, 6)
    want = np.einsum("ai,aoi->ao", x, flat[of]) + (b.reshape(e, -1)[of] if bias else 0)
    assert distance(y, want) < 1e-14
    dy = random.standard_normal(y.shape)
    dx, held = grouped.backward_input(dy.copy(), saved, counts, w)
    assert distance(dx, np.einsum("ao,aoi->ai", dy, flat[of])) < 1e-14
    for add in (False, True):
        dw, db = random.standard_normal(w.shape), random.standard_normal((e, *shape)) if bias else None
        before, before_b = dw.copy(), None if db is None else db.copy()
        grouped.backward_weight(held, dw, db, add)
        for k in range(e):
            one = (dy[of == k].T @ x[of == k]).reshape(w.shape[1:])
            assert np.abs(dw[k] - one - add * before[k]).max() < 1e-13
            if db is not None:
                assert np.abs(db[k] - dy[of == k].sum(0).reshape(shape) - add * before_b[k]).max() < 1e-13
            if not counts[k]:
                assert np.array_equal(dw[k], before[k] * add), "no rows: exact zeros, or what was there"


def test_counts_that_do_not_fit_are_refused():
    for counts in ((1, 2), (1, 1, 1, 0), (2, 1)):
        with pytest.raises(ValueError, match="do not fit"):
            grouped.forward(np.ones((3, 2)), counts, np.ones((3, 2, 2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n, a", [(9, 17), (4, 0), (1, 3), (300, 40)])
def test_permutations_and_their_adjoints(random, dtype, n, a):
    tokens = random.integers(0, n, a)
    x, rows, dy = (random.standard_normal(s).astype(dtype) for s in ((n, 7), (a, 7), (n, 7)))
    weights = random.standard_normal(a).astype(dtype)
    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    assert np.array_equal(permute.gather(x, tokens), x[tokens])
    spread = np.zeros((n, 7), dtype)
    np.add.at(spread, tokens, rows)
    dx = permute.gather_backward(rows, tokens, n)
    assert near(dx, spread, tolerance) and near(permute.add_rows_array(rows, tokens, n), spread, tolerance)
    y = permute.combine(rows, weights, tokens, n)
    want = np.zeros((n, 7), dtype)
    np.add.at(want, tokens, weights[:, None] * rows)
    assert near(y, want, tolerance) and y.dtype == dtype
    drows, dweights = permute.combine_backward(dy, rows, weights, tokens)
    assert near(drows, weights[:, None] * dy[tokens], tolerance) and near(dweights, (rows * dy[tokens]).sum(1), tolerance)
    assert dweights.dtype == drows.dtype == dtype


def test_combine_by_finite_differences(random):
    tokens, n = np.array([0, 2, 2, 4, 0, 1]), 5
    rows, weights, dy = random.standard_normal((6, 3)), random.standard_normal(6), random.standard_normal((5, 3))
    drows, dweights = permute.combine_backward(dy, rows, weights, tokens)
    differences(lambda: float((permute.combine(rows, weights, tokens, n) * dy).sum()), [(rows, drows), (weights, dweights)], random)


def test_tokens_outside_are_refused():
    for tokens in (np.array([0, 5]), np.array([-1, 0]), np.array([0])):
        with pytest.raises(ValueError, match="do not name"):
            permute.combine(np.ones((2, 3)), np.ones(2), tokens, 5)
