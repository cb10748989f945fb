"""Layer and root-mean-square normalisation: finite differences, twins, hard rows, bits."""

import numpy as np
import pytest
from op_checks import differences, distance, same_rows

from hpcpar.ops import layer_norm, rms_norm

SIZES = [(15, 5), (1, 1), (1, 33), (130, 3), (2, 65)]


@pytest.mark.parametrize("n,d", SIZES)
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_gradients(random, n, d, bias):
    x, dy, gain = 2 * random.standard_normal((n, d)) + 1, random.standard_normal((n, d)), random.standard_normal(d)
    b = random.standard_normal(d) if bias else None
    saved = layer_norm.forward(x, gain, b)[1]
    dx, held = layer_norm.backward_input(dy, saved, gain)
    dgain, db = np.full(d, np.nan), np.full(d, np.nan)
    layer_norm.backward_weight(held, dgain, db if bias else None, add=False)
    pairs = [(x, dx), (gain, dgain)] + ([(b, db)] if bias else [])
    differences(lambda: float((layer_norm.forward(x, gain, b)[0] * dy).sum()), pairs, random, 1e-7)


@pytest.mark.parametrize("n,d", SIZES)
def test_rms_norm_gradients(random, n, d):
    x, dy, gain = 2 * random.standard_normal((n, d)) + 1, random.standard_normal((n, d)), random.standard_normal(d)
    dx, held = rms_norm.backward_input(dy, rms_norm.forward(x, gain)[1], gain)
    dgain = np.full(d, np.nan)
    rms_norm.backward_weight(held, dgain, add=False)
    differences(lambda: float((rms_norm.forward(x, gain)[0] * dy).sum()), [(x, dx), (gain, dgain)], random, 1e-7)


def test_gradients_of_vectors_accumulate():
    held = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    dgain, db = np.ones(2), np.ones(2)
    layer_norm.backward_weight(held, dgain, db, add=True)
    rms_norm.backward_weight(held[:1], dgain, add=True)
    assert dgain.tolist() == [3, 5] and db.tolist() == [4, 5]


@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-14), (np.float32, 3e-6)])
@pytest.mark.parametrize("n,d", [(131, 65), (64, 384), (1, 7), (0, 4)])
def test_kernels_equal_array_text(random, n, d, dtype, limit):
    x, dy = (3 * random.standard_normal((n, d)) + 1).astype(dtype), random.standard_normal((n, d)).astype(dtype)
    gain, bias = random.standard_normal(d).astype(dtype), random.standard_normal(d).astype(dtype)
    wide = [a.astype(np.float64) for a in (x, dy, gain, bias)]
    for b, wide_b in ((bias, wide[3]), (None, None)):
        y, saved = layer_norm.forward(x, gain, b)
        expected, wide_saved = layer_norm.forward_array(wide[0], wide[2], wide_b, 1e-5)
        assert y.dtype == dtype and distance(y, expected) < limit
        assert all(distance(s, e) < limit for s, e in zip(saved, wide_saved, strict=True))
        got, expected = layer_norm.backward_input(dy, saved, gain), layer_norm.backward_array(wide[1], wide_saved, wide[2])
        assert distance(got[0], expected[0]) < limit
        assert distance(got[1][0], expected[1][0]) < limit and distance(got[1][1], expected[1][1]) < limit
    y, saved = rms_norm.forward(x, gain)
    expected, wide_saved = rms_norm.forward_array(wide[0], wide[2], 1e-5)
    got, back = rms_norm.backward_input(dy, saved, gain), rms_norm.backward_array(wide[1], wide_saved, wide[2])
    assert y.dtype == dtype and distance(y, expected) < limit and distance(saved[1], wide_saved[1]) < limit
    assert distance(got[0], back[0]) < limit and distance(got[1][0], back[1][0]) < limit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 3.25, -1e4, 1e-30])
def test_rows_of_one_value_stay_finite(dtype, value):
    x, gain, dy = np.full((3, 33), value, dtype), np.ones(33, dtype), np.ones((3, 33), dtype)
    dy[1] *= -2
    y, saved = layer_norm.forward(x, gain, None)
    dx, held = layer_norm.backward_input(dy, saved, gain)
    assert np.abs(y).max() <= 1e-3 * max(1, abs(value)) and all(np.isfinite(a).all() for a in (dx, *held))
    y, saved = rms_norm.forward(x, gain)
    dx, held = rms_norm.backward_input(dy, saved, gain)
    assert np.abs(y).max() <= 1.0001 and np.isfinite(dx).all() and np.isfinite(held[0]).all()
    if value == 0:
        assert not y.any()


@pytest.mark.parametrize("width", [1, 5, 64, 384])
def test_a_row_has_the_same_bits_in_any_batch(random, width):
    gain, bias = random.standard_normal(width).astype(np.float32), random.standard_normal(width).astype(np.float32)
    dy = random.standard_normal((67, width)).astype(np.float32)

    def layer(x, a):
        y, saved = layer_norm.forward(x, gain, bias)
        return y, *saved, layer_norm.backward_input(dy[a : a + len(x)], saved, gain)[0]

    def rms(x, a):
        y, saved = rms_norm.forward(x, gain)
        return y, *saved, rms_norm.backward_input(dy[a : a + len(x)], saved, gain)[0]

    same_rows(layer, random, (67, width))
    same_rows(rms, random, (67, width))


def test_strided_rows_have_the_bits_of_contiguous_ones(random):
    fused, gain = random.standard_normal((9, 80)).astype(np.float32), random.standard_normal(37).astype(np.float32)
    for op in (layer_norm, rms_norm):
        assert np.array_equal(op.forward(fused[:, 3:40], gain)[0], op.forward(fused[:, 3:40].copy(), gain)[0])


def test_an_offset_costs_no_digits(random):
    x = (random.standard_normal((4, 384)) + 1000).astype(np.float32)
    y = layer_norm.forward(x, np.ones(384, np.float32))[0]
    assert distance(y, layer_norm.forward_array(x.astype(np.float64), np.ones(384), None, 1e-5)[0]) < 1e-4


def test_sizes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"\(4,\)"):
        layer_norm.forward(np.ones((2, 5)), np.ones(4))
    with pytest.raises(ValueError, match="one shape"):
        rms_norm.backward_input(np.ones((3, 5)), rms_norm.forward(np.ones((2, 5)), np.ones(5))[1], np.ones(5))
