"""Rotary position embedding, half-rotated as in Llama's public implementation. Su et al., arXiv:2104.09864, section 3.4.2.

Element j of a head (j < K/2) is paired with element j + K/2 and the pair turned by the angle position * base^(-2j/K):

    y[j]       = x[j] cos - x[j + K/2] sin
    y[j + K/2] = x[j + K/2] cos + x[j] sin

Turning back is the inverse and the adjoint.
"""

from __future__ import annotations

from typing import Any

from hpcpar.errors import PlanError
from hpcpar.ops.array import Array, Cost, Part, array_module, contiguous, native, span

Tables = tuple[Array, Array]


def tables(positions: Array, width: int, base: float = 10000.0, dtype: Any = "float32") -> Tables:
    """positions (T,) of a head of `width` K -> (cos, sin), each (T, K/2), computed in float64.

    Raises PlanError for an odd K.
    """
    if width % 2:
        raise PlanError(f"a head of width {width} has no pairs to rotate: it is odd; use width / heads even or position = 'learned'")
    xp = array_module(positions)
    rate = base ** (-2.0 * xp.arange(width // 2, dtype="float64") / width)
    angle = positions.astype("float64")[:, None] * rate
    return xp.cos(angle).astype(dtype), xp.sin(angle).astype(dtype)


def apply(x: Array, table: Tables) -> Array:
    """x (B, T, H, K), possibly strided, turned in place by its positions' angles; returns x."""
    cos, sin = table
    if native(x) and x.strides[3] == x.itemsize:
        from hpcpar.ops.kernels import rotary as kernel

        if cos.shape != sin.shape or cos.shape != (x.shape[1], x.shape[3] // 2) or cos.dtype != x.dtype:
            raise ValueError(f"tables {cos.shape} {cos.dtype} do not fit x {x.shape} {x.dtype}; they are (T, K/2) of its dtype")
        kernel.rotate(span(x), *x.shape, *(s // x.itemsize for s in x.strides[:3]), contiguous(cos), contiguous(sin))
        return x
    return apply_array(x, table)


def apply_inverse(x: Array, table: Tables) -> Array:
    """The adjoint of `apply`: x (B, T, H, K) turned back in place; of gradients, the backward."""
    cos, sin = table
    return apply(x, (cos, -sin))


def apply_array(x: Array, table: Tables) -> Array:
    """`apply` in array text: CuPy's path and the kernel's naive twin."""
    cos, sin = table[0][:, None, :], table[1][:, None, :]
    half = x.shape[3] // 2
    a, b = x[..., :half], x[..., half:]
    turned = a * cos - b * sin
    b[...] = b * cos + a * sin
    a[...] = turned
    return x


def cost(part: Part, rows: int, heads: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part on `rows` positions of `heads` heads; there are no weights."""
    n = rows * heads * width
    return Cost(0, 0) if part == "W" else Cost(3 * n, (2 * n + rows * width) * itemsize)
