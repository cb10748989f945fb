"""The gradients of a stage whose experts are cut over its replicas: each range of the flat array is summed over ranks of its own.

    flat gradients   | held by every replica      | experts that are here         |
                     |<- over all the replicas -->|<- over those that hold them ->|        each with buckets of its own

Either range leaves as the backward fills it, on a communicator of its own: no order between the two is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.parallel.buckets import Buckets


class Regions:
    """What sums each range, in the place of one reducer; a range that none of them sums is complete where it is made."""

    def __init__(self, reducers: Sequence[Buckets]):
        self._reducers = reducers

    def begin(self) -> None:
        """Start a step."""
        for reducer in self._reducers:
            reducer.begin()

    def ready(self, start: int, stop: int) -> None:
        """The gradients of [start, stop), which lies in one range, are complete on this rank."""
        for reducer in self._reducers:
            reducer.ready(start, stop)

    def start(self) -> None:
        """All gradients are complete on this rank: what has not left leaves."""
        for reducer in self._reducers:
            reducer.start()

    def finish(self) -> None:
        """Wait until every bucket is summed; raises if one was never filled."""
        for reducer in self._reducers:
            reducer.finish()
