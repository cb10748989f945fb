"""The memory of the device, counted: whatever is on it was taken from here, and never more than the limit.

limit  |-----------------------------------------|
used   gradients, tokens | weights | saved | beside|       take: room must be there; fits: whether it is
"""

from __future__ import annotations


class Pool:
    """Bytes of the device under a hard limit; on a CPU it stands for a GPU's memory."""

    def __init__(self, limit: int):
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._recent = 0

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` bytes more."""
        return self.used + size <= self.limit

    def take(self, size: int) -> None:
        """Count `size` bytes more; raises RuntimeError past the limit: the plan of the moves was wrong then."""
        if not self.fits(size):
            raise RuntimeError(f"the device holds {self.used} of at most {self.limit} bytes, and {size} more were asked for")
        self.used += size
        self.peak, self._recent = max(self.peak, self.used), max(self._recent, self.used)

    def give(self, size: int) -> None:
        """Count `size` bytes less; raises RuntimeError where so many were not taken."""
        if size > self.used:
            raise RuntimeError(f"the device holds {self.used} bytes, and {size} were given back")
        self.used -= size

    def recent(self) -> int:
        """The most that was used since this was last asked."""
        most, self._recent = self._recent, self.used
        return most
