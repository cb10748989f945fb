"""Layer and root-mean-square normalisation, row by row; vector gradients in blocks of 64 rows."""

from __future__ import annotations

import numpy as np

from hpcpar.ops.kernels.scalar import fma, kernel, summing

BLOCK = 64


@summing()
def _sum(x):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return total


@summing()
def _squares(x, mean):
    total = x.dtype.type(0)
    for i in range(x.size):
        c = x[i] - mean
        total += c * c
    return total


@summing()
def _dots(dy, gain, x, mean, rstd):
    """The sums of h = dy gain and of h x^, x^ = (x - mean) rstd."""
    a = x.dtype.type(0)
    b = x.dtype.type(0)
    for i in range(x.size):
        h = dy[i] * gain[i]
        a += h
        b += h * ((x[i] - mean) * rstd)
    return a, b


@kernel()
def layer_forward(x, gain, bias, eps, y, mean, rstd):
    """x (N, D) -> y (N, D), mean (N,), rstd (N,)."""
    number = x.dtype.type
    n = number(x.shape[1])
    for r in range(x.shape[0]):
        row, to = x[r], y[r]
        m = _sum(row) / n
        s = number(1) / np.sqrt(_squares(row, m) / n + number(eps))
        mean[r], rstd[r] = m, s
        for i in range(row.size):
            to[i] = fma((row[i] - m) * s, gain[i], bias[i])


@kernel()
def layer_backward(dy, x, mean, rstd, gain, dx, dgain, dbias):
    """dy, x (N, D) -> dx (N, D), dgain and dbias (D,)."""
    number = x.dtype.type
    n = number(x.shape[1])
    part = np.empty((2, x.shape[1]), x.dtype)
    dgain[:] = number(0)
    dbias[:] = number(0)
    for start in range(0, x.shape[0], BLOCK):
        part[:] = number(0)
        pg, pb = part[0], part[1]
        for r in range(start, min(start + BLOCK, x.shape[0])):
            d, row, to = dy[r], x[r], dx[r]
            m, s = mean[r], rstd[r]
            a, b = _dots(d, gain, row, m, s)
            a, b = a / n, b / n
            for i in range(row.size):
                xhat = (row[i] - m) * s
                pg[i] = fma(d[i], xhat, pg[i])
                pb[i] += d[i]
                to[i] = (fma(d[i], gain[i], -a) - xhat * b) * s
        for i in range(dgain.size):
            dgain[i] += pg[i]
            dbias[i] += pb[i]


@kernel()
def rms_forward(x, gain, eps, y, rstd):
    """x (N, D) -> y (N, D), rstd (N,)."""
    number = x.dtype.type
    n = number(x.shape[1])
    for r in range(x.shape[0]):
        row, to = x[r], y[r]
        s = number(1) / np.sqrt(_squares(row, number(0)) / n + number(eps))
        rstd[r] = s
        for i in range(row.size):
            to[i] = row[i] * s * gain[i]


@kernel()
def rms_backward(dy, x, rstd, gain, dx, dgain):
    """dy, x (N, D) -> dx (N, D), dgain (D,)."""
    number = x.dtype.type
    n = number(x.shape[1])
    part = np.empty(x.shape[1], x.dtype)
    dgain[:] = number(0)
    for start in range(0, x.shape[0], BLOCK):
        part[:] = number(0)
        for r in range(start, min(start + BLOCK, x.shape[0])):
            d, row, to = dy[r], x[r], dx[r]
            s = rstd[r]
            b = _dots(d, gain, row, number(0), s)[1] / n
            for i in range(row.size):
                xhat = row[i] * s
                part[i] = fma(d[i], xhat, part[i])
                to[i] = fma(d[i], gain[i], -(xhat * b)) * s
        for i in range(dgain.size):
            dgain[i] += part[i]
