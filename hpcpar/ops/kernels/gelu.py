"""GELU, forward and backward, one pass each; e = e^-2u with u at x taken into -10 .. 10."""

from __future__ import annotations

from math import pi, sqrt

from hpcpar.ops.kernels.scalar import exp_inside, fma, kernel

A = sqrt(2 / pi)
B = 0.044715
EDGE = 10.0


@kernel()
def forward(x, y):
    """x (n,) -> y (n,) = x / (1 + e)."""
    number = x.dtype.type
    one, edge = number(1), number(EDGE)
    c1, c3 = number(-2 * A), number(-2 * A * B)
    for i in range(x.size):
        c = min(max(x[i], -edge), edge)
        y[i] = x[i] / (one + exp_inside(c * fma(c3 * c, c, c1)))


@kernel()
def forward_bias(x, bias, y):
    """x (N, F) += bias (F,), then y (N, F) = x / (1 + e)."""
    number = x.dtype.type
    one, edge = number(1), number(EDGE)
    c1, c3 = number(-2 * A), number(-2 * A * B)
    for r in range(x.shape[0]):
        row, to = x[r], y[r]
        for i in range(row.size):
            a = row[i] + bias[i]
            row[i] = a
            c = min(max(a, -edge), edge)
            to[i] = a / (one + exp_inside(c * fma(c3 * c, c, c1)))


@kernel()
def backward(dy, x):
    """dy (n,) *= dGELU/dx = s + x s (1 - s) 2 du/dx in place, s = 1 / (1 + e), so that 1 - s = e s; x (n,)."""
    number = x.dtype.type
    one, edge = number(1), number(EDGE)
    c1, c3, d3 = number(-2 * A), number(-2 * A * B), number(6 * A * B)
    for i in range(dy.size):
        c = min(max(x[i], -edge), edge)
        e = exp_inside(c * fma(c3 * c, c, c1))
        s = one / (one + e)
        du = fma(d3 * c, c, -c1)
        dy[i] *= fma(c * s * (e * s), du, s)
