"""The passes of the optimizers over flat slices, in place, and the sum of squares of a gradient.

Each is written so that the bits of an element depend on that element alone: a slice cut elsewhere updates to the same weights.
"""

from __future__ import annotations

from hpcpar.ops.array import Array, Cost, alike, array_module, contiguous, native

BLOCK = 1024  # partial sums of `square_sum`


def adamw(
    w: Array,
    g: Array,
    m: Array,
    v: Array,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    c1: float,
    c2: float,
    scale: float = 1.0,
) -> None:
    """One step of AdamW on flat w, m, v (n,), in place; g (n,) is read only. Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.

    g' = scale g ; m = beta1 m + (1 - beta1) g' ; v = beta2 v + (1 - beta2) g'^2 ; w -= lr ((m / c1) / (sqrt(v / c2) + eps) + decay w)
    with the bias corrections c1 = 1 - beta1^t, c2 = 1 - beta2^t of step t >= 1.
    """
    if native(w):
        from hpcpar.ops.kernels import update as kernel

        alike(w, g, m, v)
        kernel.adamw(w, g, m, v, lr, beta1, beta2, eps, decay, c1, c2, scale)
    else:
        adamw_array(w, g, m, v, lr, beta1, beta2, eps, decay, c1, c2, scale)


def sgd(w: Array, g: Array, m: Array, lr: float, momentum: float, decay: float, scale: float = 1.0) -> None:
    """One step of SGD with momentum on flat w, m (n,), in place; g (n,) is read only.

    m = momentum m + scale g ; w -= lr (m + decay w), the decay decoupled as AdamW's
    """
    if native(w):
        from hpcpar.ops.kernels import update as kernel

        alike(w, g, m)
        kernel.sgd(w, g, m, lr, momentum, decay, scale)
    else:
        sgd_array(w, g, m, lr, momentum, decay, scale)


def square_sum(g: Array) -> float:
    """The sum of squares of all elements, in float64 and one fixed order: element i goes to partial sum i mod 1024, then pairwise."""
    if native(g):
        from hpcpar.ops.kernels import update as kernel

        return float(kernel.square_sum(contiguous(g).reshape(-1)))
    return square_sum_array(g)


def add_(a: Array, b: Array) -> Array:
    """a += b, in place, of equal shapes (a residual connection); returns a."""
    if native(a) and native(b) and a.flags.c_contiguous and b.flags.c_contiguous:
        from hpcpar.ops.kernels import columns

        alike(a, b)
        columns.add(a.reshape(-1), b.reshape(-1))
    else:
        a += b
    return a


def adamw_array(
    w: Array,
    g: Array,
    m: Array,
    v: Array,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    c1: float,
    c2: float,
    scale: float = 1.0,
) -> None:
    """`adamw` in array text: CuPy's path and the kernel's naive twin."""
    xp = array_module(w)
    g = g * scale
    m *= beta1
    m += (1 - beta1) * g
    v *= beta2
    v += (1 - beta2) * g * g
    w -= lr * (m / c1 / (xp.sqrt(v / c2) + eps) + decay * w)


def sgd_array(w: Array, g: Array, m: Array, lr: float, momentum: float, decay: float, scale: float = 1.0) -> None:
    """`sgd` in array text."""
    m *= momentum
    m += g * scale
    w -= lr * (m + decay * w)


def square_sum_array(g: Array) -> float:
    """`square_sum` in array text."""
    xp = array_module(g)
    x = g.reshape(-1)
    sums = xp.zeros(BLOCK, dtype=xp.float64)
    whole = x.size // BLOCK * BLOCK
    for a in range(0, whole, BLOCK * 8192):
        blocks = x[a : min(a + BLOCK * 8192, whole)].reshape(-1, BLOCK).astype(xp.float64)
        sums += (blocks * blocks).sum(axis=0)
    rest = x[whole:].astype(xp.float64)
    sums[: rest.size] += rest * rest
    while sums.size > 1:
        half = sums.size // 2
        sums = sums[:half] + sums[half:]
    return float(sums[0])


def cost_adamw(size: int, itemsize: int = 4) -> Cost:
    """The work of one AdamW pass: 16 flops an element, 4 arrays read, 3 written."""
    return Cost(16 * size, 7 * size * itemsize)


def cost_sgd(size: int, itemsize: int = 4) -> Cost:
    """The work of one SGD pass: 7 flops an element, 3 arrays read, 2 written."""
    return Cost(7 * size, 5 * size * itemsize)
