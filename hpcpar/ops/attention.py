"""Causal multi-head attention by tiles of rows: out = softmax(q k' / sqrt(K)) v, where row t sees columns 0 .. t.

A tile of rows sees only the columns up to its last row, so that half of the scores are never made, and never more than one tile of
them is held. The backward makes a tile's probabilities again from lse, the log of the row's sum of exponentials (Dao et al.,
arXiv:2205.14135, section 3):

    forward, a tile of rows           backward, the same tile
    1  s   = q k'                     4' dv += p' dout ; dp = dout v'
    2  lse = log sum e^(s / sqrt K)   3' p   = e^(s / sqrt K - lse), s made again
    3  p   = e^(s / sqrt K - lse)     2' ds  = p (dp - D) / sqrt K, D = sum of dout out over K
    4  out = p v                      1' dq  = ds k ; dk += ds' q

Head h reads the keys and values of group h // (H / G): multi-head for G = H, grouped-query for less, multi-query for G = 1. dk and dv are
summed over tiles in ascending order, and within a tile over the heads of a group in ascending order.

Rows may be a piece of a longer sample: row t is then position `first` + t of the C columns and sees columns 0 .. first + t; with
first >= C - 1 every row sees all of them. `merge` makes one result of two such blocks, whose backwards take the lse of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.ops.array import Array, Cost, Part, alike, array_module, native, span

TILE = 64  # rows on a CPU: the matrix products run near their full rate, a tile's scores of all heads stay in the L2 cache
DEVICE_TILE = 512  # on a GPU launches cost more than the masked half of a tile's corner

Saved = tuple[Array, Array, Array, Array, Array]
Between = Callable[[], object]  # called after every tile, so that messages on their way can move


def _nothing() -> None:
    pass


def forward(q: Array, k: Array, v: Array, out: Array, first: int = 0, between: Between = _nothing) -> Saved:
    """q (B, T, H, K), k and v (B, C, G, K) -> out (B, T, H, K), written; saved (q, k, v, out, lse (B, H, T)).

    All may be strided views, as of one fused (B, T, H + 2 G, K). Raises PlanError where G does not divide H.
    """
    groups, xp = _groups(q, k), array_module(q)
    lse = xp.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=q.dtype)
    buffer = _scores(q, k)
    for at in _samples(q):
        for rows, columns in _rows(q, k, first):
            s = _view(buffer, q[at, rows], columns.stop, groups)
            xp.matmul(_heads(q[at, rows], groups), _groups_of(k[at, columns]).swapaxes(-1, -2), out=s)
            _softmax(s, lse[at], rows, first, q.shape[3] ** -0.5)
            xp.matmul(s, _groups_of(v[at, columns]), out=_heads(out[at, rows], groups))
            between()
    return q, k, v, out, lse


def backward_input(dout: Array, saved: Saved, dq: Array, dk: Array, dv: Array, first: int = 0, between: Between = _nothing) -> None:
    """dout (B, T, H, K) -> dq (B, T, H, K), dk and dv (B, C, G, K), written into the given, possibly strided, arrays."""
    q, k, v, out, lse = saved
    groups, xp, scale = _groups(q, k), array_module(q), q.shape[3] ** -0.5
    d = row_dots(dout, out)
    s_buffer, dp_buffer = _scores(q, k), _scores(q, k)
    many = q.shape[2] // groups
    for at in _samples(q):
        n, t, _, width = k[at].shape
        sums = xp.zeros((2, n, groups, t, width), dtype=q.dtype)  # of dk and dv
        part = xp.empty(n * groups * many * t * width, dtype=q.dtype)
        for rows, columns in _rows(q, k, first):
            keys, values = _groups_of(k[at, columns]), _groups_of(v[at, columns])
            queries, douts = _heads(q[at, rows], groups), _heads(dout[at, rows], groups)
            s = _view(s_buffer, q[at, rows], columns.stop, groups)
            dp = _view(dp_buffer, q[at, rows], columns.stop, groups)
            xp.matmul(queries, keys.swapaxes(-1, -2), out=s)
            xp.matmul(douts, values.swapaxes(-1, -2), out=dp)
            _softmax_backward(s, dp, lse[at], d[at], rows, first, scale)  # s is now p, dp is ds
            product = part[: n * groups * many * columns.stop * width].reshape(n, groups, many, columns.stop, width)
            _add(sums[1], xp.matmul(s.swapaxes(-1, -2), douts, out=product))
            _add(sums[0], xp.matmul(dp.swapaxes(-1, -2), queries, out=product))
            xp.matmul(dp, keys, out=_heads(dq[at, rows], groups))
            between()
        dk[at] = sums[0].swapaxes(1, 2)
        dv[at] = sums[1].swapaxes(1, 2)


def row_dots(a: Array, b: Array) -> Array:
    """a, b (B, T, H, K) -> (B, H, T), the sum of a b over K."""
    if native(a) and a.strides[3] == b.strides[3] == a.itemsize:
        from hpcpar.ops.kernels import softmax as kernel

        alike(a, b)
        d = np.empty((a.shape[0], a.shape[2], a.shape[1]), a.dtype)
        strides = [s // x.itemsize for x in (a, b) for s in x.strides[:3]]
        kernel.row_dots(span(a), span(b), *strides, a.shape[3], d)
        return d
    return (a * b).sum(axis=3).swapaxes(1, 2)


def _groups(q: Array, k: Array) -> int:
    heads, groups = q.shape[2], k.shape[2]
    if heads % groups:
        raise PlanError(f"heads = {heads} cannot share kv_heads = {groups}: it is no divisor; use kv_heads that divides heads")
    return groups


def _samples(q: Array) -> Iterator[slice]:
    """One sample at a time on a CPU, for its cache; all on a device."""
    if array_module(q) is np:
        return (slice(b, b + 1) for b in range(q.shape[0]))
    return iter((slice(0, q.shape[0]),))


def _rows(q: Array, k: Array, first: int) -> Iterator[tuple[slice, slice]]:
    """The tiles of rows, ascending, each with the columns that its last row sees."""
    t, tile = q.shape[1], _tile(q)
    for a in range(0, t, tile):
        b = min(a + tile, t)
        yield slice(a, b), slice(0, min(first + b, k.shape[1]))


def _tile(q: Array) -> int:
    return TILE if array_module(q) is np else DEVICE_TILE


def _scores(q: Array, k: Array) -> Array:
    """Memory for the scores of one tile of rows for all heads."""
    b, t, h, _ = q.shape
    samples = 1 if array_module(q) is np else b
    return array_module(q).empty(samples * h * min(_tile(q), t) * k.shape[1], dtype=q.dtype)


def _view(buffer: Array, q: Array, columns: int, groups: int) -> Array:
    """The start of the buffer as scores (n, G, H / G, R, C) of the tile q (n, R, H, K)."""
    n, r, h, _ = q.shape
    return buffer[: n * h * r * columns].reshape(n, groups, h // groups, r, columns)


def _heads(x: Array, groups: int) -> Array:
    """x (n, R, H, K) -> a view (n, G, H / G, R, K)."""
    n, r, h, width = x.shape
    return x.reshape(n, r, groups, h // groups, width).transpose(0, 2, 3, 1, 4)


def _groups_of(x: Array) -> Array:
    """x (n, C, G, K) -> a view (n, G, 1, C, K), which broadcasts over the heads of a group."""
    return x.swapaxes(1, 2)[:, :, None]


def _softmax(s: Array, lse: Array, rows: slice, first: int, scale: float) -> None:
    """s (n, G, H / G, R, C) -> its probabilities in place; lse (n, H, T) is written at `rows`."""
    if native(s):
        from hpcpar.ops.kernels import softmax as kernel

        kernel.tile_forward(s.reshape(-1, *s.shape[3:]), lse.reshape(-1, lse.shape[2]), rows.start, first, scale)
    else:
        softmax_array(s, lse, rows, first, scale)


def _softmax_backward(s: Array, dp: Array, lse: Array, d: Array, rows: slice, first: int, scale: float) -> None:
    """s -> p and dp -> ds, in place."""
    if native(s):
        from hpcpar.ops.kernels import softmax as kernel

        lse, d = lse.reshape(-1, lse.shape[2]), d.reshape(-1, d.shape[2])
        kernel.tile_backward(s.reshape(-1, *s.shape[3:]), dp.reshape(-1, *s.shape[3:]), lse, d, rows.start, first, scale)
    else:
        softmax_backward_array(s, dp, lse, d, rows, first, scale)


def _add(total: Array, product: Array) -> None:
    """total (n, G, T, K) += product (n, G, H / G, C, K) summed over the heads of a group, on the first C rows."""
    if native(total):
        from hpcpar.ops.kernels import softmax as kernel

        kernel.add_heads(total.reshape(-1, *total.shape[2:]), product.reshape(-1, *product.shape[2:]))
    else:
        total[:, :, : product.shape[3]] += product.sum(axis=2)


def _seen(s: Array, rows: slice, first: int) -> Array:
    """(R, C): whether the row sees the column."""
    xp = array_module(s)
    return xp.arange(s.shape[-1])[None, :] <= xp.arange(first + rows.start, first + rows.stop)[:, None]


def softmax_array(s: Array, lse: Array, rows: slice, first: int, scale: float) -> None:
    """`_softmax` in array text: CuPy's path and the kernel's naive twin."""
    xp, seen = array_module(s), _seen(s, rows, first)
    s *= scale
    top = xp.where(seen, s, -xp.inf).max(axis=-1)[..., None]
    e = xp.where(seen, xp.exp(xp.minimum(s - top, 0)), s.dtype.type(0))
    total = e.sum(axis=-1)[..., None]
    s[...] = e / total
    lse[:, :, rows] = (top + xp.log(total)).reshape(lse.shape[0], lse.shape[1], -1)


def softmax_backward_array(s: Array, dp: Array, lse: Array, d: Array, rows: slice, first: int, scale: float) -> None:
    """`_softmax_backward` in array text."""
    xp, seen = array_module(s), _seen(s, rows, first)
    shape = (*s.shape[:-1], 1)
    s *= scale
    s -= lse[:, :, rows].reshape(shape)
    s[...] = xp.where(seen, xp.exp(xp.where(seen, s, 0)), s.dtype.type(0))
    dp -= d[:, :, rows].reshape(shape)
    dp *= s
    dp *= scale


def merge(out: Array, lse: Array, part: Array, other: Array) -> None:
    """out (B, T, H, K), lse (B, H, T) of some columns -> of these and others, in place; part (B, T, H, K), other (B, H, T) are the others'.

    lse' = log(e^lse + e^other), out' = e^(lse - lse') out + e^(other - lse') part. All may be strided; a row whose lse is -inf has seen no
    column. Only part (and other) of the shape and dtype of out (and lse) will do: ValueError.
    """
    alike(out, part)
    alike(lse, other)
    if native(out) and out.strides[3] == part.strides[3] == out.itemsize and lse.strides[2] == other.strides[2] == lse.itemsize:
        from hpcpar.ops.kernels import softmax as kernel

        wide = [s // x.itemsize for x in (out, part) for s in x.strides[:3]]
        narrow = [s // x.itemsize for x in (lse, other) for s in x.strides[:2]]
        kernel.merge(span(out), span(part), *wide, span(lse), span(other), *narrow, *part.shape)
    else:
        merge_array(out, lse, part, other)


def merge_array(out: Array, lse: Array, part: Array, other: Array) -> None:
    """`merge` in array text."""
    xp = array_module(out)
    top = xp.maximum(lse, other)
    shift = xp.where(top == -xp.inf, 0, top)
    a, b = xp.exp(lse - shift), xp.exp(other - shift)
    total = a + b
    total = xp.where(total == 0, 1, total)
    out *= (a / total).swapaxes(1, 2)[..., None]
    out += part * (b / total).swapaxes(1, 2)[..., None]
    lse[...] = top + xp.log(total)


def cost(part: Part, samples: int, positions: int, heads: int, groups: int, width: int, itemsize: int = 4) -> Cost:
    """The work of one part: the causal half of two products forward and five backward (one is made again); there are no weights."""
    n, half = samples * positions, positions * (positions + 1) // 2
    scores, qo, kv = samples * heads * half, n * heads * width, n * groups * width
    return {
        "F": Cost((4 * width + 12) * scores, (2 * qo + 2 * kv + n * heads) * itemsize),
        "I": Cost((10 * width + 12) * scores + 2 * qo, (4 * qo + 4 * kv + n * heads) * itemsize),
        "W": Cost(0, 0),
    }[part]
