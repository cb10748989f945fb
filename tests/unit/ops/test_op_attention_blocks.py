"""Attention of some rows to some columns, and the merge of such pieces: against the whole, finite differences, hard scores."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from op_checks import differences, distance

from hpcpar.errors import PlanError
from hpcpar.ops import attention


def naive(q, k, v, dout, first, lse=None, out=None):
    """All scores at once, in float64: row t sees columns 0 .. first + t -> out, lse, dq, dk, dv; of a longer row with its lse and out."""
    q, k, v, dout = (a.astype(np.float64) for a in (q, k, v, dout))
    (b, t, h, width), (c, g) = q.shape, k.shape[1:3]
    keys, values = k.repeat(h // g, axis=2), v.repeat(h // g, axis=2)
    s = np.einsum("bthk,bshk->bhts", q, keys) / np.sqrt(width)
    s = np.where(np.arange(c)[None] <= first + np.arange(t)[:, None], s, -np.inf)
    top = s.max(-1, keepdims=True)
    mine = (top + np.log(np.exp(s - top).sum(-1, keepdims=True)))[..., 0]
    lse = mine if lse is None else lse
    p = np.exp(s - lse[..., None])
    o = np.einsum("bhts,bshk->bthk", p, values)
    dp = np.einsum("bthk,bshk->bhts", dout, values)
    d = (dout * (o if out is None else out)).sum(-1).swapaxes(1, 2)
    ds = p * (dp - d[..., None]) / np.sqrt(width)
    dq = np.einsum("bhts,bshk->bthk", ds, keys)
    dk = np.einsum("bhts,bthk->bshk", ds, q).reshape(b, c, g, h // g, width).sum(3)
    dv = np.einsum("bhts,bthk->bshk", p, dout).reshape(b, c, g, h // g, width).sum(3)
    return o, mine, dq, dk, dv


def block(q, k, v, dout, first):
    out = np.full_like(q, np.nan)
    saved = attention.forward(q, k, v, out, first)
    grads = [np.full(a.shape, np.nan, a.dtype) for a in (q, k, v)]
    attention.backward_input(dout, saved, *grads, first)
    return out, saved[4], *grads


def draw(random, b, t, c, h, g, k, dtype=np.float64):
    sizes = ((t, h), (c, g), (c, g), (t, h))
    return [random.standard_normal((b, n, heads, k)).astype(dtype) for n, heads in sizes]


@pytest.mark.parametrize("t,c,first", [(1, 1, 0), (1, 9, 9), (7, 5, 5), (5, 7, 2), (5, 7, 1), (33, 70, 37), (70, 33, 33), (65, 129, 200)])
@pytest.mark.parametrize("h,g", [(3, 3), (4, 1), (6, 2)])
def test_blocks_equal_all_scores_at_once(random, t, c, first, h, g):
    case = draw(random, 2, t, c, h, g, 6)
    for got, expected in zip(block(*case, first), naive(*case, first), strict=True):
        assert np.abs(got - expected).max() < 1e-13 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("t,c,first", [(5, 4, 4), (3, 7, 2), (2, 6, 4)])
@pytest.mark.parametrize("g", [1, 3])
def test_gradients_of_a_block(random, t, c, first, g):
    q, k, v, dout = draw(random, 2, t, c, 3, g, 4)
    _, _, dq, dk, dv = block(q, k, v, dout, first)
    loss = lambda: float((block(q, k, v, dout, first)[0] * dout).sum())  # noqa: E731
    differences(loss, [(q, dq), (k, dk), (v, dv)], random, 1e-7)


@pytest.mark.parametrize("r,row0,first,c", [(1, 0, 3, 4), (7, 64, 5, 76), (5, 3, 90, 20), (4, 2, 1, 7)])
@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-14), (np.float32, 1e-6)])
def test_kernels_equal_array_text(random, r, row0, first, c, dtype, limit):
    rows, s = slice(row0, row0 + r), 3 * random.standard_normal((1, 2, 3, r, c)).astype(dtype)
    dp, d = random.standard_normal(s.shape).astype(dtype), random.standard_normal((1, 6, 80)).astype(dtype)
    p, p2, lse, wide = s.copy(), s.astype(np.float64), np.zeros((1, 6, 80), dtype), np.zeros((1, 6, 80))
    attention._softmax(p, lse, rows, first, 0.3)
    attention.softmax_array(p2, wide, rows, first, 0.3)
    assert distance(p, p2) < limit and distance(lse, wide) < limit
    ds, ds2, again = dp.copy(), dp.astype(np.float64), s.astype(np.float64)
    attention._softmax_backward(s, ds, lse, d, rows, first, 0.3)
    attention.softmax_backward_array(again, ds2, wide, d.astype(np.float64), rows, first, 0.3)
    assert distance(s, again) < 3 * limit and distance(ds, ds2) < 3 * limit


def pieces(q, k, v, dout, cuts):
    """Attention of all rows to all columns, some columns at a time, merged; their backwards take the global lse."""
    out, lse = None, None
    for c in cuts:
        part = np.full_like(q, np.nan)
        other = attention.forward(q, k[:, c], v[:, c], part, c.stop)[4]
        if out is None:
            out, lse = part, other
        else:
            attention.merge(out, lse, part, other)
    dq, dk, dv = np.zeros_like(q), np.full_like(k, np.nan), np.full_like(v, np.nan)
    for c in cuts:
        more = np.empty_like(q)
        attention.backward_input(dout, (q, k[:, c], v[:, c], out, lse), more, dk[:, c], dv[:, c], c.stop)
        dq += more
    return out, lse, dq, dk, dv


@settings(max_examples=40, deadline=None)
@given(
    some.integers(1, 9),
    some.lists(some.integers(1, 9), min_size=1, max_size=4),
    some.integers(1, 2),
    some.integers(1, 3),
)
def test_merged_pieces_are_the_whole(t, widths, g, many):
    random, ends = np.random.default_rng(t), np.cumsum([0, *widths])
    cuts = [slice(a, b) for a, b in pairwise(ends)]
    q, k, v, dout = draw(random, 2, t, int(ends[-1]), g * many, g, 3)
    q *= t
    for order in (cuts, cuts[::-1]):
        for got, expected in zip(pieces(q, k, v, dout, order), naive(q, k, v, dout, int(ends[-1])), strict=True):
            assert np.abs(got - expected).max() < 1e-12 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-11), (np.float32, 1e-2)])  # scores of 1e4 are rounded to so much
@pytest.mark.parametrize("size", [1e2, 1e4, -1e4])
def test_merge_of_extreme_scores(random, dtype, limit, size):
    """One piece outweighs the other by more than the exponential's range, in either order, or both are as large."""
    q, k, v, dout = draw(random, 1, 5, 8, 2, 1, 4, dtype)
    q[...] = np.sqrt(abs(size))
    k[...] = np.copysign(np.sqrt(abs(size)), size) * random.choice([-1, 0, 1], (1, 8, 1, 1))
    halves = [slice(0, 4), slice(4, 8)]
    expected = naive(q, k, v, dout, 8)
    for order in (halves, halves[::-1]):
        got = pieces(q, k, v, dout, order)
        assert all(np.isfinite(a).all() for a in got)
        assert distance(got[0], expected[0]) < limit and distance(got[1], expected[1]) < limit
        assert distance(got[4], expected[4]) < limit


def merged(random, dtype, strided=False):
    b, t, h, k = 2, 5, 3, 4
    out, part = random.standard_normal((2, b, 2 * t, h, k)).astype(dtype)
    lse, other = (9 * random.standard_normal((2, b, h, 2 * t))).astype(dtype)
    lse[:, :, 0], other[:, :, 1], lse[:, :, 2] = -np.inf, -np.inf, -np.inf
    other[:, :, 2] = -np.inf
    lse[:, :, 3], other[:, :, 4] = 3e4, -3e4
    half = slice(0, t) if strided else slice(None)
    return out, lse, part[:, half] if strided else part, np.ascontiguousarray(other[:, :, half]), half


@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-14), (np.float32, 1e-6)])
@pytest.mark.parametrize("strided", [False, True])
def test_merge_of_rows_that_saw_nothing(random, dtype, limit, strided):
    """-inf is the log of no exponentials: such a piece adds nothing, and two of them stay one; kernel and array text agree."""
    out, lse, part, other, half = merged(random, dtype, strided)
    kept, held = out.copy(), lse.copy()
    a, b = out.astype(np.float64), lse.astype(np.float64)
    attention.merge(out[:, half], lse[:, :, half], part, other)
    attention.merge_array(a[:, half], b[:, :, half], part.astype(np.float64), other.astype(np.float64))
    assert distance(out, a) < limit
    assert np.isneginf(lse[:, :, 2]).all() and np.isneginf(b[:, :, 2]).all()
    assert distance(np.where(np.isinf(lse), 0, lse), np.where(np.isinf(b), 0, b)) < limit
    assert np.array_equal(out[:, 0], part[:, 0]) and np.array_equal(lse[:, :, 0], other[:, :, 0])
    assert np.array_equal(out[:, 1], kept[:, 1]) and np.array_equal(lse[:, :, 1], held[:, :, 1])
    assert not strided or (np.array_equal(out[:, 5:], kept[:, 5:]) and np.array_equal(lse[:, :, 5:], held[:, :, 5:]))


def test_merge_needs_arrays_of_one_shape(random):
    out, lse, part, other, _ = merged(random, np.float64)
    for wrong in ((out, lse, part[:, :2], other), (out, lse, part, other[:, :, :2]), (out, lse, part.astype(np.float32), other)):
        with pytest.raises(ValueError, match="one shape"):
            attention.merge(*wrong)


def test_messages_move_after_every_tile(random):
    q, k, v, dout = draw(random, 3, 130, 40, 2, 1, 4)
    calls = []
    saved = attention.forward(q, k, v, np.empty_like(q), 40, lambda: calls.append("f"))
    attention.backward_input(dout, saved, *(np.empty_like(a) for a in (q, k, v)), 40, lambda: calls.append("b"))
    tiles = 3 * -(-130 // attention.TILE)
    assert calls == ["f"] * tiles + ["b"] * tiles


def test_groups_must_divide_heads():
    with pytest.raises(PlanError, match="heads = 4 cannot share kv_heads = 3"):
        attention.forward(np.ones((1, 2, 4, 2)), np.ones((1, 3, 3, 2)), np.ones((1, 3, 3, 2)), np.ones((1, 2, 4, 2)), 3)
