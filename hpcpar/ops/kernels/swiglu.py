"""SwiGLU, forward and backward, one pass each, on gate and up side by side."""

from __future__ import annotations

from hpcpar.ops.kernels.scalar import exp, fma, kernel


@kernel()
def forward(gu, y):
    """gu (N, 2F) -> y (N, F) = g u / (1 + e^-g)."""
    one, f = gu.dtype.type(1), y.shape[1]
    for r in range(gu.shape[0]):
        g, u, to = gu[r, :f], gu[r, f:], y[r]
        for i in range(f):
            to[i] = g[i] / (one + exp(-g[i])) * u[i]


@kernel()
def backward(dy, gu, dgu):
    """dy (N, F), gu (N, 2F) -> dgu (N, 2F): dg = dy u s (1 + g (1 - s)), du = dy g s."""
    one, f = gu.dtype.type(1), dy.shape[1]
    for r in range(gu.shape[0]):
        g, u, d = gu[r, :f], gu[r, f:], dy[r]
        dg, du = dgu[r, :f], dgu[r, f:]
        for i in range(f):
            e = exp(-g[i])
            s = one / (one + e)
            ds = d[i] * s
            dg[i] = ds * u[i] * fma(g[i], e * s, one)
            du[i] = ds * g[i]
