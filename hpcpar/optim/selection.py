"""The rule of a router's selection bias, which no loss trains: b += rate sign(mean count - count), once an update.

What stands in the place of its gradient is E count - sum of counts of the whole batch, whose sign is exact (DeepSeek-V3, section 2.1.2).
A step that is skipped leaves the bias as it was.
"""

from __future__ import annotations

from typing import Any

from hpcpar.ops.array import array_module


def balance(bias: Any, excess: Any, rate: float) -> None:
    """bias (E,) in place, excess (E,)."""
    bias -= rate * array_module(excess).sign(excess)
