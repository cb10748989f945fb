"""Layer normalisation over the last dim: y = (x - mean) rstd gain + bias, rstd = 1 / sqrt(var + eps). Ba et al., arXiv:1607.06450."""

from __future__ import annotations

from hpcpar.ops.array import Array, Cost, Part, alike, array_module, contiguous, native, put, vector

Saved = tuple[Array, Array, Array]
Held = tuple[Array, Array]


def forward(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> tuple[Array, Saved]:
    """x (N, D), gain (D,), bias (D,) or None -> y (N, D), saved (x, mean (N,), rstd (N,))."""
    if native(x):
        from hpcpar.ops.kernels import norm as kernel

        xp, x = array_module(x), contiguous(x)
        vector(x, gain, bias)
        y, mean, rstd = xp.empty_like(x), xp.empty(x.shape[0], x.dtype), xp.empty(x.shape[0], x.dtype)
        kernel.layer_forward(x, contiguous(gain), xp.zeros_like(gain) if bias is None else contiguous(bias), eps, y, mean, rstd)
        return y, (x, mean, rstd)
    return forward_array(x, gain, bias, eps)


def backward_input(dy: Array, saved: Saved, gain: Array) -> tuple[Array, Held]:
    """dy (N, D) -> dx (N, D), held (dgain (D,), dbias (D,)).

    With x^ = (x - mean) rstd and h = dy gain: dx = rstd (h - mean(h) - x^ mean(h x^)); dgain = sum of dy x^ over rows, dbias of dy.
    """
    x, mean, rstd = saved
    if native(dy):
        from hpcpar.ops.kernels import norm as kernel

        xp = array_module(x)
        alike(dy, x)
        vector(x, gain)
        dx, dgain, dbias = xp.empty_like(x), xp.empty_like(gain), xp.empty_like(gain)
        kernel.layer_backward(contiguous(dy), x, mean, rstd, contiguous(gain), dx, dgain, dbias)
        return dx, (dgain, dbias)
    return backward_array(dy, saved, gain)


def backward_weight(held: Held, dgain: Array, dbias: Array | None = None, add: bool = False) -> None:
    """Write the held vector gradients into dgain (D,) and dbias (D,), added where `add`."""
    put(dgain, held[0], add)
    put(dbias, held[1], add)


def forward_array(x: Array, gain: Array, bias: Array | None, eps: float) -> tuple[Array, Saved]:
    """The forward in array text: CuPy's path and the kernel's naive twin."""
    xp = array_module(x)
    mean = x.mean(axis=1)
    centred = x - mean[:, None]
    rstd = 1 / xp.sqrt((centred * centred).mean(axis=1) + eps)
    centred *= rstd[:, None]
    centred *= gain
    if bias is not None:
        centred += bias
    return centred, (x, mean, rstd)


def backward_array(dy: Array, saved: Saved, gain: Array) -> tuple[Array, Held]:
    """The backward in array text."""
    x, mean, rstd = saved
    xhat = (x - mean[:, None]) * rstd[:, None]
    h = dy * gain
    dx = (h - h.mean(axis=1)[:, None] - xhat * (h * xhat).mean(axis=1)[:, None]) * rstd[:, None]
    return dx, ((dy * xhat).sum(axis=0), dy.sum(axis=0))


def cost(part: Part, rows: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part on (rows, width); the vector gradients are made in I."""
    n = rows * width
    return {
        "F": Cost(8 * n, (2 * n + 2 * width + 2 * rows) * itemsize),
        "I": Cost(14 * n, (3 * n + 3 * width + 2 * rows) * itemsize),
        "W": Cost(2 * width, 4 * width * itemsize),
    }[part]
