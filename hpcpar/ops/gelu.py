"""The GELU in GPT-2's tanh form: y = x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3). Hendrycks and Gimpel, arXiv:1606.08415.

Since (1 + tanh u) / 2 = 1 / (1 + e^-2u), the kernels need one exponential and one division an element. Beyond |x| = 10 the
function is 0 or x to every digit; u is taken there, so that no x overflows.
"""

from __future__ import annotations

from math import pi, sqrt

from hpcpar.ops.array import Array, Cost, Part, alike, array_module, contiguous, native, vector

A = sqrt(2 / pi)
B = 0.044715
EDGE = 10.0  # e^-2u(-10) = 7e37 is still a float32

Saved = Array


def forward(x: Array, bias: Array | None = None) -> tuple[Array, Saved]:
    """x (..., F) -> y (..., F), saved x. With `bias` (F,), x += bias first, in place: one pass instead of two."""
    if native(x):
        from hpcpar.ops.kernels import gelu as kernel

        x = contiguous(x)
        vector(x, bias)
        y = array_module(x).empty_like(x)
        if bias is None:
            kernel.forward(x.reshape(-1), y.reshape(-1))
        else:
            kernel.forward_bias(x.reshape(-1, x.shape[-1]), contiguous(bias), y.reshape(-1, x.shape[-1]))
        return y, x
    if bias is not None:
        x += bias
    return forward_array(x), x


def backward_input(dy: Array, saved: Saved) -> Array:
    """dy (..., F), saved x -> dx = dy dGELU/dx; overwrites dy's memory."""
    if native(dy):
        from hpcpar.ops.kernels import gelu as kernel

        alike(dy, saved)
        dy = contiguous(dy)
        kernel.backward(dy.reshape(-1), contiguous(saved).reshape(-1))
        return dy
    dy *= derivative_array(saved)
    return dy


def forward_array(x: Array) -> Array:
    """The forward in array text: CuPy's path and the kernel's naive twin."""
    xp = array_module(x)
    c = xp.clip(x, -EDGE, EDGE)
    return x * 0.5 * (1 + xp.tanh(A * (c + B * c * c * c)))


def derivative_array(x: Array) -> Array:
    """dGELU/dx in array text."""
    xp = array_module(x)
    c = xp.clip(x, -EDGE, EDGE)
    t = xp.tanh(A * (c + B * c * c * c))
    return 0.5 * (1 + t) + 0.5 * c * (1 - t * t) * A * (1 + 3 * B * c * c)


def cost(part: Part, rows: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part on (rows, width); there are no weights."""
    n = rows * width
    return {"F": Cost(20 * n, 2 * n * itemsize), "I": Cost(30 * n, 3 * n * itemsize), "W": Cost(0, 0)}[part]
