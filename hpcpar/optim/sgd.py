"""Stochastic gradient descent with momentum and decoupled weight decay.

    g <- scale g
    m <- momentum m + g
    w <- (1 - lr decay) w - lr m

Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 1: the decay enters neither the gradient nor the momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hpcpar.ops import update
from hpcpar.optim.segments import Segment

if TYPE_CHECKING:
    from hpcpar.config import Train


@dataclass(frozen=True)
class SGD:
    """The rule; its state is the `momentum`."""

    momentum: float
    weight_decay: float

    names: ClassVar[tuple[str, ...]] = ("momentum",)

    @classmethod
    def of(cls, train: Train) -> SGD:
        """The rule of a description."""
        return cls(train.momentum, train.weight_decay)

    def state(self, n: int, xp: Any, dtype: Any) -> dict[str, Any]:
        """The state of n elements before the first update: {name: zeros (n,)} of the array module xp."""
        return {name: xp.zeros(n, dtype) for name in self.names}

    def step(self, w: Any, g: Any, state: dict[str, Any], segments: Sequence[Segment], t: int, lr: float, scale: float) -> None:
        """Update w (n,) and the state in place with the gradient scale x g (n,), which is used up; the same for every update t."""
        m = state["momentum"]
        for start, stop, decayed in segments:
            part, decay = slice(start, stop), self.weight_decay if decayed else 0.0
            update.sgd(w[part], g[part], m[part], lr, self.momentum, decay, scale)
