"""Softmax of attention's tiles and of the loss: a row's largest, exponentials and sum, while it is in the first cache.

Columns that a row does not see are set to -inf, so that every row of a tile runs the same, unmasked loops over all of its columns.
"""

from __future__ import annotations

import numpy as np

from hpcpar.ops.kernels.scalar import exp, fma, kernel, larger, summing

BLOCK = 512  # exponentials of the loss held at a time


@kernel()
def _largest(x):
    top = x[0]
    for i in range(1, x.size):
        top = larger(top, x[i])
    return top


@summing()
def _sum(x):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return total


@summing()
def _dot(a, b):
    total = a.dtype.type(0)
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@kernel()
def tile_forward(s, lse, row0, first, scale):
    """s (n, R, C) scores of rows row0 .. row0 + R -> probabilities in place; lse (n, T) is written at these rows.

    Row t sees columns 0 .. first + t.
    """
    number = s.dtype.type
    factor, hidden = number(scale), number(-np.inf)
    for n in range(s.shape[0]):
        for r in range(s.shape[1]):
            row = s[n, r]
            row[first + row0 + r + 1 :] = hidden
            shift = -(_largest(row) * factor)
            for i in range(row.size):
                row[i] = exp(fma(row[i], factor, shift))
            total = _sum(row)
            share = number(1) / total
            for i in range(row.size):
                row[i] *= share
            lse[n, row0 + r] = np.log(total) - shift


@kernel()
def tile_backward(s, dp, lse, d, row0, first, scale):
    """s (n, R, C) scores of rows row0 .. row0 + R -> p, dp -> ds = p (dp - d) scale, in place; lse, d (n, T)."""
    factor, hidden = s.dtype.type(scale), s.dtype.type(-np.inf)
    for n in range(s.shape[0]):
        for r in range(s.shape[1]):
            row, to = s[n, r], dp[n, r]
            row[first + row0 + r + 1 :] = hidden
            shift, dot = -lse[n, row0 + r], d[n, row0 + r]
            for i in range(row.size):
                p = exp(fma(row[i], factor, shift))
                row[i] = p
                to[i] = (to[i] - dot) * (p * factor)


@kernel()
def merge(out, part, ob, ot, oh, pb, pt, ph, lse, other, lb, lh, eb, eh, samples, rows, heads, width):
    """out, part: spans of (B, R, H, K), strides (ob, ot, oh, 1), (pb, pt, ph, 1); lse, other: of (B, H, R), (lb, lh, 1), (eb, eh, 1)."""
    zero, nothing = out.dtype.type(0), out.dtype.type(-np.inf)
    for n in range(samples):
        for h in range(heads):
            for t in range(rows):
                mine, theirs = lse[n * lb + h * lh + t], other[n * eb + h * eh + t]
                top = max(mine, theirs)
                a, b = zero, zero
                if top > nothing:
                    a, b = exp(mine - top), exp(theirs - top)
                    total = a + b
                    a, b = a / total, b / total
                    lse[n * lb + h * lh + t] = top + np.log(total)
                i, j = n * ob + t * ot + h * oh, n * pb + t * pt + h * ph
                to, of = out[i : i + width], part[j : j + width]
                for x in range(width):
                    to[x] = a * to[x] + b * of[x]


@kernel()
def add_heads(total, product):
    """total (n, T, K) += product (n, M, C, K) summed over M, on the first C rows."""
    columns = product.shape[2]
    for n in range(total.shape[0]):
        to = total[n, :columns].reshape(-1)
        for m in range(product.shape[1]):
            part = product[n, m].reshape(-1)
            for i in range(to.size):
                to[i] += part[i]


@kernel()
def row_dots(a, b, ab, at, ah, bb, bt, bh, width, d):
    """d (B, H, T) = sum of a b over K, of the spans of (B, T, H, K) with strides in elements (ab, at, ah, 1) and (bb, bt, bh, 1)."""
    for n in range(d.shape[0]):
        for t in range(d.shape[2]):
            for h in range(d.shape[1]):
                i, j = n * ab + t * at + h * ah, n * bb + t * bt + h * bh
                d[n, h, t] = _dot(a[i : i + width], b[j : j + width])


@kernel()
def _exponentials(x, shift, y):
    for i in range(x.size):
        y[i] = exp(x[i] + shift)


@kernel()
def loss_forward(logits, labels, lse):
    """logits (N, V), labels (N,) -> lse (N,) float64 and the sum of lse - logits[label] over rows with a label."""
    v = logits.shape[1]
    e = np.empty(min(v, BLOCK), logits.dtype)
    loss = 0.0
    for r in range(logits.shape[0]):
        row = logits[r]
        top = _largest(row)
        total = 0.0
        for a in range(0, v, BLOCK):
            part = e[: min(BLOCK, v - a)]
            _exponentials(row[a : a + part.size], -top, part)
            total += _sum(part)
        lse[r] = np.float64(top) + np.log(total)
        if labels[r] >= 0:
            loss += lse[r] - row[labels[r]]
    return loss


@kernel()
def loss_backward(logits, lse, labels, scale):
    """logits (N, V) -> scale (softmax - onehot) in place, 0 in ignored rows."""
    number = logits.dtype.type
    factor = number(scale)
    for r in range(logits.shape[0]):
        row = logits[r]
        if labels[r] < 0:
            row[:] = number(0)
            continue
        high = number(lse[r])  # lse in two parts: the first difference is exact where it matters
        low = number(lse[r] - high)
        for i in range(row.size):
            row[i] = exp((row[i] - high) - low) * factor
        row[labels[r]] -= factor


@kernel()
def part_totals(logits, top, totals):
    """logits (N, V') of a slice of the vocabulary, top (N,) -> totals (N,) float64, the sums of e^(logit - top)."""
    v, number = logits.shape[1], logits.dtype.type
    e = np.empty(min(v, BLOCK), logits.dtype)
    for r in range(logits.shape[0]):
        row, shift, total = logits[r], number(-top[r]), 0.0
        for a in range(0, v, BLOCK):
            part = e[: min(BLOCK, v - a)]
            _exponentials(row[a : a + part.size], shift, part)
            total += _sum(part)
        totals[r] = total


@kernel()
def part_backward(logits, lse, labels, first, scale):
    """`loss_backward` of a slice that begins at `first`: the label counts only where it lies in the slice."""
    number = logits.dtype.type
    factor = number(scale)
    for r in range(logits.shape[0]):
        row = logits[r]
        if labels[r] < 0:
            row[:] = number(0)
            continue
        high = number(lse[r])
        low = number(lse[r] - high)
        for i in range(row.size):
            row[i] = exp((row[i] - high) - low) * factor
        mine = labels[r] - first
        if 0 <= mine < row.size:
            row[mine] -= factor
