"""The gated MLP's activation: y = silu(g) u, silu(g) = g / (1 + e^-g). Shazeer 2020, arXiv:2002.05202, eq. 6.

Gate and up projection lie side by side in one array gu (N, 2F), as one matrix product makes them.
"""

from __future__ import annotations

from hpcpar.ops.array import Array, Cost, Part, alike, array_module, contiguous, native

Saved = Array


def forward(gu: Array) -> tuple[Array, Saved]:
    """gu (N, 2F), gate then up -> y (N, F), saved gu."""
    if native(gu):
        from hpcpar.ops.kernels import swiglu as kernel

        y = array_module(gu).empty((gu.shape[0], gu.shape[1] // 2), gu.dtype)
        kernel.forward(contiguous(gu), y)
        return y, gu
    return forward_array(gu), gu


def backward_input(dy: Array, saved: Saved) -> Array:
    """dy (N, F), saved gu -> dgu (N, 2F): dg = dy u s (1 + g (1 - s)), du = dy g s, s = 1 / (1 + e^-g)."""
    if native(dy):
        from hpcpar.ops.kernels import swiglu as kernel

        alike(dy, saved[:, : saved.shape[1] // 2])
        dgu = array_module(dy).empty(saved.shape, saved.dtype)
        kernel.backward(contiguous(dy), contiguous(saved), dgu)
        return dgu
    return backward_array(dy, saved)


def forward_array(gu: Array) -> Array:
    """The forward in array text: CuPy's path and the kernel's naive twin."""
    f = gu.shape[1] // 2
    return gu[:, :f] * sigmoid(gu[:, :f]) * gu[:, f:]


def backward_array(dy: Array, gu: Array) -> Array:
    """The backward in array text."""
    f = gu.shape[1] // 2
    g, u = gu[:, :f], gu[:, f:]
    s = sigmoid(g)
    dgu = array_module(gu).empty_like(gu)
    dgu[:, :f] = dy * u * s * (1 + g * (1 - s))
    dgu[:, f:] = dy * g * s
    return dgu


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x) through tanh, which never overflows."""
    return 0.5 * (1 + array_module(x).tanh(0.5 * x))


def cost(part: Part, rows: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part on gu (rows, 2 width) -> y (rows, width); there are no weights."""
    n = rows * width
    return {"F": Cost(18 * n, 3 * n * itemsize), "I": Cost(24 * n, 5 * n * itemsize), "W": Cost(0, 0)}[part]
