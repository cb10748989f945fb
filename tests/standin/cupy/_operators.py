"""The methods and operators of the array, from tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _names
from ._array import PLACE, ndarray, run


def _method(name: str) -> Callable[..., Any]:
    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        _names.check(PLACE, name, self, *args, **kwargs)
        if name == "astype":  # the real one has neither
            kwargs.pop("subok", None)
            kwargs.pop("casting", None)
        return run(getattr(np.ndarray, name), self, *args, **kwargs)

    method.__name__ = name
    return method


def _binary(name: str, of: str, order: int) -> Callable[..., Any]:
    """The operator as a ufunc: order 1 is x + y, -1 is y + x, 0 is x += y."""

    def operator(self: ndarray, other: Any) -> Any:
        f = getattr(sys.modules["cupy"], of)
        if order == 0:
            return f(self, other, out=self)
        return f(self, other) if order > 0 else f(other, self)

    operator.__name__ = name
    return operator


METHODS = """
    all any argmax argmin argsort astype clip conj copy cumsum cumprod diagonal dot fill flatten max mean min nonzero prod ravel
    repeat reshape round searchsorted sort squeeze std sum swapaxes take trace transpose var view
""".split()  # noqa: SIM905
OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
}
COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert"}

for _n in METHODS:
    setattr(ndarray, _n, _method(_n))
for _n, _of in OPERATORS.items():
    setattr(ndarray, f"__{_n}__", _binary(f"__{_n}__", _of, 1))
    setattr(ndarray, f"__r{_n}__", _binary(f"__r{_n}__", _of, -1))
    if _n != "matmul":  # the real array has no @=
        setattr(ndarray, f"__i{_n}__", _binary(f"__i{_n}__", _of, 0))
for _n, _of in COMPARISONS.items():
    setattr(ndarray, f"__{_n}__", _binary(f"__{_n}__", _of, 1))
for _n, _of in UNARY.items():
    setattr(ndarray, f"__{_n}__", lambda self, _of=_of: getattr(sys.modules["cupy"], _of)(self))
