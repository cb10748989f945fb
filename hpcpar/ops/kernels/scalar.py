"""Scalar building blocks of the kernels: how they are compiled, fused multiply-add, and an exponential that vectorises.

`exp` follows Cody and Waite: e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2, and a polynomial for e^r. float32: a minimax polynomial
of degree 6, within 1.5 units in the last place. float64: Taylor's of degree 13, whose remainder is r^14 / 14! < 5e-18. Each step is one
IEEE operation in a fixed order, so that vector and scalar code give the same bits.

numba's cache of a kernel does not see a change of this file: after one, remove the `__pycache__` of this folder.
"""

from __future__ import annotations

from functools import partial
from math import factorial, log
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

kernel: Any = partial(njit, cache=True, nogil=True, error_model="numpy")
# The additions of a row's sum are dealt to vector lanes: an order that depends on the length of the row only. Never with
# `exp`, whose own roundings must stand.
summing: Any = partial(njit, cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz"})
primitive: Any = intrinsic


@primitive
def fma(typing, a, b, c):
    """a b + c, rounded once."""
    if not (a == b == c and isinstance(a, types.Float)):
        return None
    return a(a, a, a), lambda context, builder, signature, arguments: builder.fma(*arguments)


@primitive
def larger(typing, a, b):
    """The larger of two floats of a type, no NaN: marked so that the largest of a row is found in vector lanes."""
    if not (a == b and isinstance(a, types.Float)):
        return None

    def code(context, builder, signature, arguments):
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *arguments, flags=flags), *arguments, flags=flags)

    return a(a, a), code


@primitive
def bits(typing, x):
    """The bits of a float as an integer of its size."""
    to = types.int32 if x == types.float32 else types.int64
    return to(x), lambda context, builder, signature, arguments: builder.bitcast(arguments[0], context.get_value_type(to))


@primitive
def power(typing, n):
    """The float whose bits are n shifted to the exponent: 2^(n - bias), of the low bits of n."""
    to, shift = (types.float32, 23) if n == types.int32 else (types.float64, 52)

    def code(context, builder, signature, arguments):
        shifted = builder.shl(arguments[0], context.get_constant(n, shift))
        return builder.bitcast(shifted, context.get_value_type(to))

    return to(n), code


def exp(x):
    """e^x for any x: 0 below the normal numbers, and not beyond 2^127 (2^1023)."""
    return np.exp(x)


def exp_inside(x):
    """e^x for x known to lie well inside the range, -87 .. 88 (-708 .. 709): without the comparisons."""
    return np.exp(x)


F = np.float32
LOG2E_32, HIGH_32 = F(1 / log(2)), F(-log(2))
LOW_32 = F(-log(2) - float(HIGH_32))
BIAS_32 = F(1.5 * 2**23 + 127)
FROM_32, TO_32, ONE_32 = F(-87.3), F(88.0), F(1)
FROM, TO = -708.0, 709.0
P2, P3, P4, P5, P6 = F(0.49999994), F(0.16666521), F(0.041668389), F(0.0083687175), F(0.0013814596)

LOG2E, HIGH, LOW = 1 / log(2), -0.6931471805599453, -2.3190468138462996e-17
BIAS = 1.5 * 2.0**52 + 1023
T2, T3, T4, T5, T6, T7, T8, T9, T10, T11, T12, T13 = (1 / factorial(k) for k in range(2, 14))


@overload(exp_inside)
def _exp_inside(x):
    if x == types.float32:

        def narrow(x):
            t = fma(x, LOG2E_32, BIAS_32)
            n = t - BIAS_32
            r = fma(n, LOW_32, fma(n, HIGH_32, x))
            p = fma(fma(fma(fma(P6, r, P5), r, P4), r, P3), r, P2)
            return fma(fma(p, r, ONE_32), r, ONE_32) * power(bits(t))

        return narrow

    def wide(x):
        t = fma(x, LOG2E, BIAS)
        n = t - BIAS
        r = fma(n, LOW, fma(n, HIGH, x))
        p = fma(fma(fma(fma(fma(fma(T13, r, T12), r, T11), r, T10), r, T9), r, T8), r, T7)
        p = fma(fma(fma(fma(fma(p, r, T6), r, T5), r, T4), r, T3), r, T2)
        return fma(fma(p, r, 1.0), r, 1.0) * power(bits(t))

    return wide


@overload(exp)
def _exp(x):
    low, high = (FROM_32, TO_32) if x == types.float32 else (FROM, TO)
    zero = low - low

    def bounded(x):
        return zero if x < low else exp_inside(high if x > high else x)

    return bounded
