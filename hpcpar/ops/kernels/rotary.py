"""Rotation of pairs of elements in place, on the span of a strided array."""

from __future__ import annotations

from hpcpar.ops.kernels.scalar import fma, kernel


@kernel()
def rotate(x, batch, positions, heads, width, sb, st, sh, cos, sin):
    """x: the span of (B, T, H, K) with strides sb, st, sh in elements and 1; cos, sin (T, K/2)."""
    half = width // 2
    for b in range(batch):
        for t in range(positions):
            c, s = cos[t], sin[t]
            for h in range(heads):
                at = b * sb + t * st + h * sh
                left, right = x[at : at + half], x[at + half : at + width]
                for i in range(half):
                    l, r = left[i], right[i]
                    left[i] = fma(l, c[i], -(r * s[i]))
                    right[i] = fma(r, c[i], l * s[i])
