"""The linear layer against finite differences and plain sums."""

import numpy as np
import pytest
from op_checks import differences, distance

from hpcpar.ops import linear


@pytest.mark.parametrize("n,i,o", [(15, 7, 5), (1, 3, 9), (70, 4, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients(random, n, i, o, bias):
    x, w, dy = random.standard_normal((n, i)), random.standard_normal((o, i)), random.standard_normal((n, o))
    b = random.standard_normal(o) if bias else None
    y, saved = linear.forward(x, w, b)
    assert distance(y, np.einsum("ni,oi->no", x, w) + (b if bias else 0)) < 1e-14
    dx, held = linear.backward_input(dy, saved, w)
    dw, db = np.full_like(w, np.nan), np.full(o, np.nan) if bias else None
    linear.backward_weight(held, dw, db, add=False)
    pairs = [(x, dx), (w, dw)] + ([(b, db)] if bias else [])
    differences(lambda: float((linear.forward(x, w, b)[0] * dy).sum()), pairs, random)


def test_add_accumulates_in_place(random):
    x, dy = random.standard_normal((9, 4)), random.standard_normal((9, 3))
    dw, db = np.ones((3, 4)), np.ones(3)
    linear.backward_weight((x, dy), dw, db, add=True)
    assert distance(dw, 1 + dy.T @ x) < 1e-14 and distance(db, 1 + dy.sum(0)) < 1e-14
    first = np.zeros((3, 4))
    linear.backward_weight((x, dy), first, None, add=True)
    again = np.full((3, 4), 5.0)
    linear.backward_weight((x, dy), again, None, add=False)
    assert np.array_equal(first, again), "the first microbatch added to zeros has the bits of one that is written"


def test_weights_may_be_views_of_a_flat_buffer(random):
    x, dy, flat = random.standard_normal((9, 4)), random.standard_normal((9, 3)), np.zeros(20)
    linear.backward_weight((x, dy), flat[2:14].reshape(3, 4), flat[14:17], add=True)
    assert distance(flat[2:14].reshape(3, 4), dy.T @ x) < 1e-14 and not flat[:2].any() and not flat[17:].any()


def test_out_is_written(random):
    x, w, out = random.standard_normal((9, 4)), random.standard_normal((3, 4)), np.empty((9, 3))
    assert linear.forward(x, w, None, out)[0] is out and np.array_equal(out, linear.forward(x, w)[0])
    dx = np.empty((9, 4))
    assert linear.backward_input(out, x, w, dx)[0] is dx and np.array_equal(dx, out @ w)


def test_no_rows():
    x, w, dw, db = np.zeros((0, 4)), np.ones((3, 4)), np.ones((3, 4)), np.ones(3)
    y, saved = linear.forward(x, w, np.ones(3))
    dx, held = linear.backward_input(y, saved, w)
    linear.backward_weight(held, dw, db, add=False)
    assert y.shape == (0, 3) and dx.shape == (0, 4) and not dw.any() and not db.any()


@pytest.mark.parametrize("n", [1, 3, 4, 63, 64, 65, 300])
@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-14), (np.float32, 3e-7)])
def test_column_sum(random, n, dtype, limit):
    y = random.standard_normal((n, 37)).astype(dtype)
    exact = y.astype(np.longdouble).sum(0)
    for case in (y, np.asfortranarray(y)):
        got = linear.column_sum(case)
        assert got.dtype == dtype and float(np.abs(got - exact).max()) <= limit * float(np.abs(y).sum(0).max())


def test_sums_of_columns_stay_accurate_over_many_rows():
    y = np.full((100_000, 3), 0.1, np.float32)
    assert distance(linear.column_sum(y), np.full(3, 100_000 * float(np.float32(0.1)))) < 5e-5


def test_a_bias_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"\(4,\)"):
        linear.add_bias(np.ones((2, 5)), np.ones(4))
