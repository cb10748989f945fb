"""The samples of a microbatch on this rank, by global index: every plan sees the same data.

sample of the batch  0 1 | 2 3 | 4 5 | 6 7        dp = 2, microbatches of 2 samples
                     k=0   k=0   k=1   k=1        microbatch k of all replicas together are consecutive samples
                     d=0   d=1   d=0   d=1

Where a rank holds only some positions of each sample, it gets the ids there and the labels of the tokens that follow them in the sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.data import Corpus


@dataclass(frozen=True)
class Feed:
    """Microbatches of `size` samples for replica `replica` of `replicas`; `batch` is the number of samples of a step.

    `runs` are the positions that this rank holds, ascending; none stands for all of them.
    """

    corpus: Corpus
    batch: int
    size: int
    replica: int
    replicas: int
    runs: tuple[slice, ...] = ()

    @property
    def positions(self) -> int:
        """T, the positions of a sample that are here."""
        return sum(run.stop - run.start for run in self.runs) or self.corpus.context

    def first(self, microbatch: int) -> int:
        """The place of the microbatch's first sample in the batch of its step."""
        return (microbatch * self.replicas + self.replica) * self.size

    def take(self, step: int, microbatch: int) -> tuple[np.ndarray, np.ndarray]:
        """ids (B, T), labels (B*T,) of a microbatch of a step (steps from 0)."""
        return self._here(*self.corpus.batch(step * self.batch + self.first(microbatch), self.size))

    def held_out(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """ids (count, T), labels (count*T,) of held-out samples."""
        return self._here(*self.corpus.held_out(first, count))

    def _here(self, ids: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.runs:
            ids, labels = (np.concatenate([a[:, run] for run in self.runs], axis=1) for a in (ids, labels))
        return ids, labels.reshape(-1)

    def counted(self, step: int) -> int:
        """Labels that count in the whole batch of a step: read from the data, so that no rank waits for another."""
        if not self.corpus.ignore:
            return self.batch * self.corpus.context
        return int(np.count_nonzero(self.corpus.batch(step * self.batch, self.batch)[1] >= 0))

    def unmasked(self, step: int, microbatches: int) -> int:
        """Labels that count, of this replica's microbatches of a step."""
        if not self.corpus.ignore:
            return microbatches * self.size * self.corpus.context
        return sum(int(np.count_nonzero(self.take(step, k)[1] >= 0)) for k in range(microbatches))


def on_device(array: np.ndarray, xp: Any) -> Any:
    """The array where the arithmetic is."""
    return array if xp is np else xp.asarray(array)
