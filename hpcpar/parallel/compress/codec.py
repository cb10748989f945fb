"""What every codec is: rounds of messages for a bucket, and a memory of what they left out.

step t     due = gradient + owed     sent = compressed(due)     owed = due - sent        of each rank alone
all t      sum of what was applied + sum over ranks of what is owed = sum of the gradients
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.nn.parameters import FlatMap

if TYPE_CHECKING:
    from hpcpar.config import Sync


class Memory:
    """Error feedback: `owed` (n,) is what this rank's messages left out. Stich et al. 2018, "Sparsified SGD with memory", algorithm 1."""

    def __init__(self, size: int, xp: Any, dtype: Any):
        self.owed = xp.zeros(size, dtype)
        self._next = xp.zeros(size, dtype)  # what will be owed if the step in hand is applied: a skipped one has never been

    def due(self, gradient: Any, low: int, high: int) -> Any:
        """gradient + owed of the elements low .. high - 1, where what will be owed is kept: the caller takes out what it sends."""
        due = self._next[low:high]
        due[...] = self.owed[low:high]
        due += gradient
        return due

    def settle(self, applied: bool) -> None:
        """The step was applied, or skipped: then everything is owed as it was before, and the gradient is dropped."""
        if applied:
            self.owed, self._next = self._next, self.owed

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 2 * self.owed.nbytes


class Codec(ABC):
    """How the buckets of one stage are summed; `rounds` is the number of messages that follow one another for a bucket."""

    rounds: ClassVar[int]
    memory: Memory | None = None

    @classmethod
    @abstractmethod
    def of(cls, sync: Sync, at: FlatMap, flat: Any, seed: int) -> Codec:
        """The codec of a description for the gradients `flat` (map.total,) of a stage."""

    @abstractmethod
    def exchange(self, low: int, high: int, groups: Sequence[Group], stage: int) -> Iterator[list[Pending]]:
        """Put the sum over all ranks in the place of the gradients low .. high - 1.

        Yields after each round with the messages that it started, one group a round; goes on when they are complete.
        """

    def settle(self, applied: bool) -> None:
        """The sums of a step were applied, or skipped on all ranks."""
        if self.memory:
            self.memory.settle(applied)

    def held_bytes(self) -> int:
        """Bytes that stay from step to step."""
        return self.memory.nbytes if self.memory else 0
