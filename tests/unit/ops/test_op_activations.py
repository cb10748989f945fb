"""GELU and SwiGLU: finite differences, the exact formula, hard inputs, bits."""

import numpy as np
import pytest
from op_checks import differences, distance, same_rows

from hpcpar.ops import gelu, swiglu


def gelu_exact(x):
    """y and dy/dx of the tanh form in extended precision."""
    a, b = np.sqrt(2 / np.longdouble(np.pi)), np.longdouble("0.044715")
    t = np.tanh(a * (x + b * x**3))
    return x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t * t) / 2 * a * (1 + 3 * b * x * x)


@pytest.mark.parametrize("shape", [(15, 7), (1, 1), (3, 65)])
def test_gelu_gradients(random, shape):
    x, dy = 2 * random.standard_normal(shape), random.standard_normal(shape)
    dx = gelu.backward_input(dy.copy(), gelu.forward(x)[1])
    differences(lambda: float((gelu.forward(x)[0] * dy).sum()), [(x, dx)], random)


@pytest.mark.parametrize("shape", [(15, 14), (1, 2), (3, 66)])
def test_swiglu_gradients(random, shape):
    gu, dy = 2 * random.standard_normal(shape), random.standard_normal((shape[0], shape[1] // 2))
    dgu = swiglu.backward_input(dy, swiglu.forward(gu)[1])
    differences(lambda: float((swiglu.forward(gu)[0] * dy).sum()), [(gu, dgu)], random)


@pytest.mark.parametrize("dtype,limit", [(np.float64, 4e-16), (np.float32, 2.5e-7)])
def test_gelu_is_the_tanh_form_at_every_x(dtype, limit):
    x = np.concatenate([np.linspace(-12, 12, 24_001), np.geomspace(1e-30, 1, 500), [0.0]]).astype(dtype)
    wide = x.astype(np.longdouble)
    exact, exact_slope = gelu_exact(wide)
    y, slope = gelu.forward(x)[0], gelu.backward_input(np.ones_like(x), x)
    assert (np.abs(y - exact) <= limit * np.maximum(1, np.abs(wide)) * np.minimum(1, np.abs(wide))).all()
    assert np.abs(slope - exact_slope).max() <= 3 * limit
    assert distance(gelu.forward_array(x), exact.astype(np.float64)) < 2 * limit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_of_huge_values(dtype):
    x = np.array([1e4, -1e4, 1e12, -1e12, 3e30, -3e30, np.finfo(dtype).max, 80, -80], dtype)
    for y in (gelu.forward(x)[0], gelu.forward_array(x)):
        assert np.array_equal(y[x > 0], x[x > 0]) and (np.abs(y[x < 0]) <= 1e-36 * np.abs(x[x < 0])).all()
    for slope in (gelu.backward_input(np.ones_like(x), x), gelu.derivative_array(x)):
        assert np.abs(slope - (x > 0)).max() < 1e-30


def test_not_a_number_stays_one():
    x = np.full(40, np.nan, np.float32)
    assert np.isnan(gelu.forward(x)[0]).all() and np.isnan(gelu.backward_input(np.ones_like(x), x)).all()
    assert np.isnan(swiglu.forward(x.reshape(2, 20))[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_swiglu_of_huge_values(dtype):
    gate = np.array([1e4, -1e4, 1e30, -1e30, 0, 88, -88, -800], dtype)
    gu, dy = np.stack([np.concatenate([gate, np.full(8, 2, dtype)])]), np.ones((1, 8), dtype)
    positive = np.maximum(gate, 0)
    for y in (swiglu.forward(gu)[0], swiglu.forward_array(gu)):
        assert distance(y[0], 2 * positive) < 1e-6
    for d in (swiglu.backward_input(dy, gu), swiglu.backward_array(dy, gu)):
        assert distance(d[0, 8:], positive) < 1e-6 and distance(d[0, :8], 2.0 * (gate > 0) + (gate == 0)) < 1e-6


@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-15), (np.float32, 5e-7)])
@pytest.mark.parametrize("n", [0, 1, 7, 131])
def test_kernels_equal_array_text(random, n, dtype, limit):
    x, dy = 3 * random.standard_normal((n, 66)), random.standard_normal((n, 66))
    a, da = x.astype(dtype), dy.astype(dtype)
    x, dy = a.astype(np.float64), da.astype(np.float64)
    assert distance(gelu.forward(a)[0], gelu.forward_array(x)) < limit
    assert distance(gelu.backward_input(da.copy(), a), dy * gelu.derivative_array(x)) < 3 * limit
    assert distance(swiglu.forward(a)[0], swiglu.forward_array(x)) < limit
    assert distance(swiglu.backward_input(da[:, :33], a), swiglu.backward_array(dy[:, :33], x)) < 2 * limit


def test_fused_bias_has_the_bits_of_two_passes(random):
    x, bias = random.standard_normal((9, 37)).astype(np.float32), random.standard_normal(37).astype(np.float32)
    y, saved = gelu.forward(x + bias)
    fused, kept = gelu.forward(x, bias)
    assert np.array_equal(fused, y) and np.array_equal(kept, saved)


def test_gelu_backward_reuses_the_memory_of_dy(random):
    x, dy = random.standard_normal((3, 5)), random.standard_normal((3, 5))
    assert gelu.backward_input(dy, x) is dy


def test_a_row_has_the_same_bits_in_any_batch(random):
    dy = random.standard_normal((67, 37)).astype(np.float32)
    same_rows(lambda x, a: (gelu.forward(x)[0], gelu.backward_input(dy[a : a + len(x)].copy(), x)), random)
    same_rows(lambda x, a: (swiglu.forward(x)[0], swiglu.backward_input(dy[a : a + len(x), :18], x)), random, (67, 36))


def test_sizes_that_differ_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        gelu.backward_input(np.ones((2, 5)), np.ones((2, 4)))
    with pytest.raises(ValueError, match="one shape"):
        swiglu.backward_input(np.ones((2, 5)), np.ones((2, 8)))
