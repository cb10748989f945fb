"""Causal attention by tiles against the whole matrix, finite differences, hard scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from op_checks import differences, distance

from hpcpar.errors import PlanError
from hpcpar.ops import attention


def whole(q, k, v, dout):
    """The naive twin: all scores at once, in float64 -> out, lse, dq, dk, dv."""
    q, k, v, dout = (a.astype(np.float64) for a in (q, k, v, dout))
    (b, t, h, width), g = q.shape, k.shape[2]
    keys, values = k.repeat(h // g, axis=2), v.repeat(h // g, axis=2)
    s = np.einsum("bthk,bshk->bhts", q, keys) / np.sqrt(width)
    s = np.where(np.tril(np.ones((t, t), bool)), s, -np.inf)
    top = s.max(-1, keepdims=True)
    lse = top + np.log(np.exp(s - top).sum(-1, keepdims=True))
    p = np.exp(s - lse)
    out = np.einsum("bhts,bshk->bthk", p, values)
    dp = np.einsum("bthk,bshk->bhts", dout, values)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(width)
    dq = np.einsum("bhts,bshk->bthk", ds, keys)
    dk = np.einsum("bhts,bthk->bshk", ds, q).reshape(b, t, g, h // g, width).sum(3)
    dv = np.einsum("bhts,bthk->bshk", p, dout).reshape(b, t, g, h // g, width).sum(3)
    return out, lse[..., 0], dq, dk, dv


def tiled(q, k, v, dout):
    out = np.full_like(q, np.nan)
    saved = attention.forward(q, k, v, out)
    grads = [np.full(a.shape, np.nan, a.dtype) for a in (q, k, v)]
    attention.backward_input(dout, saved, *grads)
    return out, saved[4], *grads


def draw(random, b, t, h, g, k, dtype=np.float64):
    return [random.standard_normal((b, t, n, k)).astype(dtype) for n in (h, g, g, h)]


@pytest.mark.parametrize("t", [1, 5, 7, 33, 65])
@pytest.mark.parametrize("g", [1, 3])
def test_gradients(random, t, g):
    q, k, v, dout = draw(random, 3, t, 3, g, 4)
    _, _, dq, dk, dv = tiled(q, k, v, dout)
    loss = lambda: float((tiled(q, k, v, dout)[0] * dout).sum())  # noqa: E731
    differences(loss, [(q, dq), (k, dk), (v, dv)], random, 1e-7)


@pytest.mark.parametrize("t", [1, 31, 32, 33, 63, 64, 65, 100, 128, 129])
@pytest.mark.parametrize("h,g", [(3, 3), (3, 1), (6, 2)])
def test_tiles_equal_the_whole_matrix(random, t, h, g):
    case = draw(random, 2, t, h, g, 6)
    for got, expected in zip(tiled(*case), whole(*case), strict=True):
        assert np.abs(got - expected).max() < 1e-13 * max(1, np.abs(expected).max())


@settings(max_examples=60, deadline=None)
@given(some.integers(1, 3), some.integers(1, 24), some.integers(1, 3), some.integers(1, 3), some.integers(1, 7), some.integers(1, 9))
def test_any_shape_and_tile(b, t, g, many, k, tile):
    case = draw(np.random.default_rng(t), b, t, g * many, g, k)
    kept, attention.TILE = attention.TILE, tile
    try:
        got = tiled(*case)
    finally:
        attention.TILE = kept
    for a, expected in zip(got, whole(*case), strict=True):
        assert np.abs(a - expected).max() < 1e-13 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("t", [1, 33, 100])
def test_float32(random, t):
    case = draw(random, 2, t, 6, 2, 64, np.float32)
    for got, expected in zip(tiled(*case), whole(*case), strict=True):
        assert got.dtype == np.float32 and np.abs(got - expected).max() < 3e-6 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-13), (np.float32, 3e-6)])
def test_views_of_one_fused_array(random, dtype, limit):
    (b, t, h, g, k), fused = (2, 70, 4, 2, 6), random.standard_normal((2, 70, 8, 6)).astype(dtype)
    cut = [(slice(None), slice(None), s) for s in (slice(0, h), slice(h, h + g), slice(h + g, None))]
    grads, dout = np.full_like(fused, np.nan), random.standard_normal((b, t, h, k)).astype(dtype)
    out = np.full((b, t, 2 * h, k), np.nan, dtype)
    attention.backward_input(dout, attention.forward(*(fused[c] for c in cut), out[:, :, 1 : h + 1]), *(grads[c] for c in cut))
    expected = whole(*(fused[c] for c in cut), dout)
    assert distance(out[:, :, 1 : h + 1], expected[0]) < limit and np.isnan(out[:, :, 0]).all() and np.isnan(out[:, :, h + 1 :]).all()
    for c, e in zip(cut, expected[2:], strict=True):
        assert distance(grads[c], e) < limit


def test_a_position_never_sees_a_later_one(random):
    q, k, v, dout = draw(random, 1, 70, 2, 2, 4)
    before = tiled(q, k, v, dout)[0]
    k[:, 40:] = 1e3
    v[:, 40:] = -1e5
    assert np.array_equal(tiled(q, k, v, dout)[0][:, :40], before[:, :40])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e2, 1e4, -1e4])
def test_extreme_scores(random, dtype, size):
    q, k, v, dout = draw(random, 1, 66, 3, 1, 4, dtype)
    q[...] = np.sqrt(abs(size))
    k[...] = np.copysign(np.sqrt(abs(size)), size) * random.choice([-1, 0, 1], k.shape)
    got = tiled(q, k, v, dout)
    assert all(np.isfinite(a).all() for a in got)
    assert distance(got[0], whole(q, k, v, dout)[0]) < (1e-2 if dtype == np.float32 else 1e-9)
    constant = tiled(q, np.full_like(k, size), v, dout)
    expected = np.cumsum(v, axis=1, dtype=np.float64) / np.arange(1, 67)[None, :, None, None]
    assert distance(constant[0], np.broadcast_to(expected, q.shape)) < (1e-5 if dtype == np.float32 else 1e-11)


def test_probabilities_of_the_first_row_are_exact(random):
    q, k, v, dout = draw(random, 2, 5, 3, 3, 4, np.float32)
    out, lse, *_ = tiled(q, k, v, dout)
    assert np.array_equal(out[:, 0], v[:, 0]), "the first position sees itself alone"
    assert distance(lse[:, :, 0], (q[:, 0] * k[:, 0]).sum(-1) / 2) < 1e-6


def test_a_sample_has_the_same_bits_in_any_batch(random):
    case = draw(random, 5, 70, 6, 2, 16, np.float32)
    every = tiled(*case)
    for a, b in ((0, 1), (3, 5), (4, 5)):
        assert all(np.array_equal(x[a:b], y) for x, y in zip(every, tiled(*(c[a:b] for c in case)), strict=True))


@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-14), (np.float32, 1e-6)])
@pytest.mark.parametrize("r,first", [(1, 0), (7, 0), (32, 64), (5, 96)])
def test_kernels_equal_array_text(random, r, first, dtype, limit):
    columns, rows = first + r, slice(first, first + r)
    s, dp = 3 * random.standard_normal((2, 1, 2, 3, r, columns)).astype(dtype)
    d, (lse, lse2) = random.standard_normal((1, 6, 110)).astype(dtype), np.zeros((2, 1, 6, 110), dtype)
    p, p2 = s.copy(), s.astype(np.float64)
    attention._softmax(p, lse, rows, 0, 0.3)
    wide = lse2.astype(np.float64)
    attention.softmax_array(p2, wide, rows, 0, 0.3)
    assert distance(p, p2) < limit and distance(lse, wide) < limit and not p[..., np.triu(np.ones((r, columns), bool), first + 1)].any()
    ds, ds2, again = dp.copy(), dp.astype(np.float64), s.astype(np.float64)
    attention._softmax_backward(s, ds, lse, d, rows, 0, 0.3)
    attention.softmax_backward_array(again, ds2, wide, d.astype(np.float64), rows, 0, 0.3)
    assert distance(s, again) < 3 * limit and distance(ds, ds2) < 3 * limit


def test_row_dots(random):
    a, b = random.standard_normal((2, 2, 9, 5, 6))
    fused = np.concatenate([a, b], axis=2)
    expected = np.einsum("bthk,bthk->bht", a, b)
    assert distance(attention.row_dots(a, b), expected) < 1e-14
    assert distance(attention.row_dots(fused[:, :, :5], fused[:, :, 5:]), expected) < 1e-14


def test_scores_in_memory_are_one_tile(random, monkeypatch):
    import tracemalloc

    q, k, v, dout = draw(random, 4, 512, 2, 2, 4)
    out, grads = np.empty_like(q), [np.empty_like(q) for _ in range(3)]
    tiled(q[:1], k[:1], v[:1], dout[:1])
    tracemalloc.start()
    try:
        saved = attention.forward(q, k, v, out)
        tile = 2 * attention.TILE * 512 * 8
        assert tracemalloc.get_traced_memory()[1] < 1.2 * tile + saved[4].nbytes
        tracemalloc.reset_peak()
        attention.backward_input(dout, saved, *grads)
        assert tracemalloc.get_traced_memory()[1] < 2.5 * tile + 8 * q[:1].nbytes + 2 * saved[4].nbytes
    finally:
        tracemalloc.stop()


def test_groups_must_divide_heads():
    with pytest.raises(PlanError, match="heads = 4 cannot share kv_heads = 3"):
        attention.forward(np.ones((1, 2, 4, 2)), np.ones((1, 2, 3, 2)), np.ones((1, 2, 3, 2)), np.ones((1, 2, 4, 2)))
