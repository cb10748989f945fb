"""The linear layer: y = x w' + b, x (N, I), w (O, I), b (O,), y (N, O)."""

from __future__ import annotations

from hpcpar.ops import update
from hpcpar.ops.array import Array, Cost, Part, array_module, contiguous, native, put, vector

Saved = Array
Held = tuple[Array, Array]


def forward(x: Array, w: Array, b: Array | None = None, out: Array | None = None) -> tuple[Array, Saved]:
    """x (N, I), w (O, I), b (O,) or None -> y (N, O), saved x; y is written into `out` where given."""
    y = array_module(x).matmul(x, w.T, out=out)
    if b is not None:
        add_bias(y, b)
    return y, x


def backward_input(dy: Array, saved: Saved, w: Array, out: Array | None = None) -> tuple[Array, Held]:
    """dy (N, O) -> dx (N, I) = dy w, held (x, dy); dx is written into `out` where given."""
    return array_module(dy).matmul(dy, w, out=out), (saved, dy)


def backward_weight(held: Held, dw: Array, db: Array | None = None, add: bool = False) -> None:
    """dw (O, I) = dy' x and db (O,) = the column sums of dy, written in place, added where `add`."""
    x, dy = held
    if add:
        update.add_(dw, array_module(x).matmul(dy.T, x))
    else:
        array_module(x).matmul(dy.T, x, out=dw)
    if db is not None:
        put(db, column_sum(dy), add)


def add_bias(y: Array, b: Array) -> None:
    """y (N, O) += b (O,), in place."""
    if native(y) and y.flags.c_contiguous:
        from hpcpar.ops.kernels import columns

        vector(y, b)
        columns.add_bias(y, contiguous(b))
    else:
        y += b


def column_sum(dy: Array) -> Array:
    """dy (N, O) -> (O,), the sum over rows in a fixed order: blocks of 64 rows, then the blocks."""
    if native(dy):
        from hpcpar.ops.kernels import columns

        return columns.column_sum(contiguous(dy))
    return dy.sum(axis=0)


def cost(part: Part, rows: int, into: int, out: int, bias: bool = True, itemsize: int = 4) -> Cost:
    """The work of one part for x (rows, into) -> y (rows, out)."""
    moved = rows * into + out * into + rows * out + bias * out * (part != "I")
    return Cost(2 * rows * into * out + bias * rows * out * (part != "I"), moved * itemsize)
