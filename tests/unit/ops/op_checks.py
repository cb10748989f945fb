"""Finite differences, distances and misaligned copies, for the tests of the operations."""

import numpy as np

STEP = 1e-5


def differences(loss, pairs, random, tolerance=2e-8):
    """Check gradients of loss() by central differences in float64: pairs of (array that it reads, gradient), array changed in place.

    Every element of a small array, 25 of a large one, and a random direction over all. Error of the method: about 1e-10 of the loss's size.
    """
    for x, g in pairs:
        assert x.shape == g.shape and np.isfinite(g).all()
        size = max(1.0, float(np.abs(g).max(initial=0)))
        every = list(np.ndindex(x.shape))
        for i in every if len(every) <= 40 else [every[j] for j in random.choice(len(every), 25, replace=False)]:
            kept = x[i]
            x[i] = kept + STEP
            up = loss()
            x[i] = kept - STEP
            down = loss()
            x[i] = kept
            assert abs((up - down) / (2 * STEP) - g[i]) < tolerance * size, (i, (up - down) / (2 * STEP), g[i])
        kept, way = x.copy(), random.standard_normal(x.shape)
        x[...] = kept + STEP * way
        up = loss()
        x[...] = kept - STEP * way
        down = loss()
        x[...] = kept
        expected = float((way * g).sum())
        assert abs((up - down) / (2 * STEP) - expected) < tolerance * size * max(1, x.size) ** 0.5 * 3, expected


def distance(a, b):
    """The largest difference relative to the largest value."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and np.isfinite(a).all() and np.isfinite(b).all()
    return float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-300))


def shifted(x, elements):
    """A copy of x whose memory starts `elements` elements after a 64-byte boundary."""
    memory = np.empty(x.size + 128, x.dtype)
    at = (-memory.ctypes.data % 64) // x.itemsize + elements
    y = memory[at : at + x.size].reshape(x.shape)
    y[...] = x
    assert not x.size or y.ctypes.data % 64 == elements * x.itemsize % 64
    return y


def same_rows(apply, random, shape=(67, 37), dtype=np.float32):
    """apply(x (N, ...), a) -> row-wise results; rows a .. b alone, at any alignment, must give the bits that they have among all."""
    x = random.standard_normal(shape).astype(dtype)
    whole = [r.copy() for r in apply(x.copy(), 0)]
    for a, b, elements in ((0, 1, 0), (0, 67, 3), (5, 6, 1), (1, 34, 7), (66, 67, 5), (13, 64, 2)):
        for alone, all_rows in zip(apply(shifted(x[a:b], elements), a), whole, strict=True):
            assert np.array_equal(alone, all_rows[a:b]), (a, b)
