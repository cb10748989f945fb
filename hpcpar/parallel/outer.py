"""The outer step of local SGD: from the average of the replicas' weights to the weights that all go on from.

    start --- every replica's own inner steps ---> w_1 .. w_N        delta = start - mean(w_r)        the outer gradient
                                                                     v <- momentum v + delta
    new   =  start - rate (delta + momentum v)                       Nesterov's momentum

Written from the mean, new = mean + (1 - rate) delta - rate momentum v, so that rate 1 without momentum is the mean to the bit: local SGD.
Douillard et al. 2023, "DiLoCo", algorithm 1, with the outer optimizer that its section 3 chooses; Stich 2019, "Local SGD converges fast".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outer:
    """The rule."""

    rate: float
    momentum: float

    @property
    def is_mean(self) -> bool:
        """Whether the new weights are the mean: neither `start` nor `v` is needed."""
        return self.rate == 1.0 and self.momentum == 0.0

    def apply(self, w: Any, start: Any, v: Any) -> None:
        """Turn the mean w (n,) into the new weights, in place, and v (n,) into the new momentum; `start` (n,) is read."""
        delta = start - w
        v *= self.momentum
        v += delta
        w += (1.0 - self.rate) * delta
        w -= (self.rate * self.momentum) * v
