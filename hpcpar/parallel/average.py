r"""The weights of a stage, averaged over its replicas: what local SGD sends in the place of gradients.

    w_0, share 1.0  \                                         a replica's share is the number of labels that it stepped on,
    w_1, share 0.8   >  all-reduce of share w  /  sum of shares       over the largest such number
    w_2, share 1.0  /                                         equal numbers: exactly the sum over N, the mean

McMahan et al. 2017, "Communication-efficient learning", algorithm 1, weights replicas so: then one step of plain SGD on unequal numbers of
labels is bulk-synchronous SGD, whose loss is the mean over all labels.
"""

from __future__ import annotations

from typing import Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.ops.array import array_module
from hpcpar.parallel.outer import Outer


class Average:
    """The average of one stage and the outer step behind it; `v` is the outer momentum, None where there is none."""

    def __init__(self, size: int, xp: Any, dtype: Any, group: Group, stage: int, outer: Outer):
        self._group, self._stage, self._outer = group, stage, outer
        self._start = None if outer.is_mean else xp.zeros(size, dtype)
        self.v = None if outer.is_mean else xp.zeros(size, dtype)
        self._pending: Pending | None = None

    def anchor(self, w: Any) -> None:
        """The replicas start a period from w (n,)."""
        if self._start is not None:
            self._start[...] = w

    def start(self, w: Any, share: float) -> None:
        """Start the sum of share x w in the place of w (n,).

        Raises FloatingPointError where w is not finite: it would spread to all replicas.
        """
        wrong = int((~array_module(w).isfinite(w)).sum())
        if wrong:
            raise FloatingPointError(
                f"{wrong} of {w.size} weights of stage {self._stage} are not finite on this replica and may not enter the average; "
                "resume with a smaller train.learning_rate, or with train.clip"
            )
        if share != 1.0:
            w *= share
        self._pending = self._group.allreduce_start(w, "sum", "average", stage=self._stage)

    def mean(self, w: Any, shares: float) -> None:
        """Wait, and make the mean of the sum of `shares`."""
        assert self._pending is not None
        self._pending.wait()
        w /= shares

    def step(self, w: Any) -> None:
        """The outer step from the mean w (n,), in place."""
        if self._start is not None:
            self._outer.apply(w, self._start, self.v)
            self._start[...] = w

    def held_bytes(self) -> int:
        """Bytes beside the weights."""
        return 0 if self._start is None or self.v is None else self._start.nbytes + self.v.nbytes
