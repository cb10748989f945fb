"""cupy.linalg: what the stand-in offers of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _names
from ._array import run


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """A vector's or matrix's norm."""
    return run(np.linalg.norm, x, ord, axis, keepdims)


def qr(a: Any, mode: str = "reduced") -> Any:
    """The factors (Q, R) of a matrix."""
    return run(lambda x: tuple(np.linalg.qr(x, mode)), a)


def __getattr__(name: str) -> Any:
    raise _names.missing("cupy.linalg", name)
