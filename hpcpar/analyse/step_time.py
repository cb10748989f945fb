"""The time of the measured steps as one axis: what lies between them (evaluation, checkpoints, the warm-up) takes none of it.

clock of the run   ....[== step 2 ==]....evaluation....[= step 3 =]...
time of the steps      0 1 2 3 4 5 6                    6 7 8 9 10            `at` never falls: before the first step 0, behind the last T
"""

from __future__ import annotations

import numpy as np


class StepTime:
    """Maps times of the run's clock in ns to time inside of disjoint ascending windows (n, 2)."""

    def __init__(self, windows: np.ndarray):
        self.windows = windows
        self._starts, self._lengths = windows[:, 0].copy(), windows[:, 1] - windows[:, 0]
        self._before = np.concatenate([[0], np.cumsum(self._lengths)])
        self.total = int(self._before[-1])

    def at(self, times: np.ndarray) -> np.ndarray:
        """times, of any shape -> ns of the steps that have passed by then."""
        if not len(self.windows):
            return np.zeros(np.shape(times), np.int64)
        i = np.maximum(np.asarray(np.searchsorted(self._starts, times, side="right")) - 1, 0)
        inside = np.clip(times - self._starts[i], 0, self._lengths[i])
        return np.add(self._before[i], inside)

    def cut(self, spans: np.ndarray) -> np.ndarray:
        """The parts (k, 2) of disjoint ascending spans (n, 2) that lie in the windows."""
        if not len(spans) or not len(self.windows):
            return np.empty((0, 2), np.int64)
        first = np.searchsorted(self.windows[:, 1], spans[:, 0], side="right")
        stop = np.searchsorted(self.windows[:, 0], spans[:, 1], side="left")
        count = np.maximum(stop - first, 0)
        which = np.repeat(np.arange(len(spans)), count)
        window = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[which]
        a, b = spans[which], self.windows[window]
        return np.stack([np.maximum(a[:, 0], b[:, 0]), np.minimum(a[:, 1], b[:, 1])], axis=1)
