"""Adam with decoupled weight decay.

    g <- scale g
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    w <- w - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay w)

Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2, the decay multiplied by the learning rate.
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
class AdamW:
    """The rule; its state is the first and second moments, `m` and `v`."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    names: ClassVar[tuple[str, ...]] = ("m", "v")

    @classmethod
    def of(cls, train: Train) -> AdamW:
        """The rule of a description."""
        return cls(train.beta1, train.beta2, train.epsilon, train.weight_decay)

    def state(self, n: int, xp: Any, dtype: Any) -> dict[str, Any]:
        """The state of n elements before the first update: {name: zeros (n,)} of the array module xp."""
        return {name: xp.zeros(n, dtype) for name in self.names}

    def step(self, w: Any, g: Any, state: dict[str, Any], segments: Sequence[Segment], t: int, lr: float, scale: float) -> None:
        """Update w (n,) and the state in place for update t = 1, 2, ... with the gradient scale x g (n,), which is used up."""
        m, v = state["m"], state["v"]
        c1, c2 = 1.0 - self.beta1**t, 1.0 - self.beta2**t
        for start, stop, decayed in segments:
            part, decay = slice(start, stop), self.weight_decay if decayed else 0.0
            update.adamw(w[part], g[part], m[part], v[part], lr, self.beta1, self.beta2, self.epsilon, decay, c1, c2, scale)
