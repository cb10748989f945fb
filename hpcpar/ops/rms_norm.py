"""Root-mean-square normalisation over the last dim: y = x rstd gain, rstd = 1 / sqrt(mean(x^2) + eps).

Zhang and Sennrich, arXiv:1910.07467, eq. 4.
"""

from __future__ import annotations

from hpcpar.ops.array import Array, Cost, Part, alike, array_module, contiguous, native, put, vector

Saved = tuple[Array, Array]
Held = tuple[Array]


def forward(x: Array, gain: Array, eps: float = 1e-5) -> tuple[Array, Saved]:
    """x (N, D), gain (D,) -> y (N, D), saved (x, rstd (N,))."""
    if native(x):
        from hpcpar.ops.kernels import norm as kernel

        xp, x = array_module(x), contiguous(x)
        vector(x, gain)
        y, rstd = xp.empty_like(x), xp.empty(x.shape[0], x.dtype)
        kernel.rms_forward(x, contiguous(gain), eps, y, rstd)
        return y, (x, rstd)
    return forward_array(x, gain, eps)


def backward_input(dy: Array, saved: Saved, gain: Array) -> tuple[Array, Held]:
    """dy (N, D) -> dx (N, D), held (dgain (D,),).

    With x^ = x rstd and h = dy gain: dx = rstd (h - x^ mean(h x^)); dgain = sum of dy x^ over rows.
    """
    x, rstd = saved
    if native(dy):
        from hpcpar.ops.kernels import norm as kernel

        xp = array_module(x)
        alike(dy, x)
        vector(x, gain)
        dx, dgain = xp.empty_like(x), xp.empty_like(gain)
        kernel.rms_backward(contiguous(dy), x, rstd, contiguous(gain), dx, dgain)
        return dx, (dgain,)
    return backward_array(dy, saved, gain)


def backward_weight(held: Held, dgain: Array, add: bool = False) -> None:
    """Write the held vector gradient into dgain (D,), added where `add`."""
    put(dgain, held[0], add)


def forward_array(x: Array, gain: Array, eps: float) -> tuple[Array, Saved]:
    """The forward in array text: CuPy's path and the kernel's naive twin."""
    xp = array_module(x)
    rstd = 1 / xp.sqrt((x * x).mean(axis=1) + eps)
    return x * rstd[:, None] * gain, (x, rstd)


def backward_array(dy: Array, saved: Saved, gain: Array) -> tuple[Array, Held]:
    """The backward in array text."""
    x, rstd = saved
    xhat = x * rstd[:, None]
    h = dy * gain
    dx = (h - xhat * (h * xhat).mean(axis=1)[:, None]) * rstd[:, None]
    return dx, ((dy * xhat).sum(axis=0),)


def cost(part: Part, rows: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part on (rows, width); the vector gradient is made in I."""
    n = rows * width
    return {
        "F": Cost(4 * n, (2 * n + width + rows) * itemsize),
        "I": Cost(10 * n, (3 * n + 2 * width + rows) * itemsize),
        "W": Cost(width, 2 * width * itemsize),
    }[part]
