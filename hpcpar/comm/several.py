"""Messages that follow each other in rounds, on their way as one operation: a round begins when all messages of the one before are through.

    round 1   send ----- |    receive -------- |             every message has an event of its own
    round 2                                     send ---- |    receive --- |
    wait            +++++++++++++++++++++++++++++++++++++++++++++++++++++++      one event, without a peer

Testing it takes every step that can be taken, so that a rank that waits for anything, or computes and lets messages move between its
operations, also passes on what others wait for. Of operations that follow each other, a later one begins its round n after the earlier one:
the messages of a pair of ranks leave in the order in which they are received.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcpar.comm.pending import Pending, Record, Waiter

Messages = Iterator[list[Pending]]  # each item: the messages of a round, begun when the item is asked for


class Several(Pending):
    """The messages of several rounds; it is complete when the rounds are used up."""

    __slots__ = ("_rounds",)

    def __init__(
        self,
        rounds: Messages,
        before: Several | None,
        facts: dict[str, Any],
        record: Record,
        waiter: Waiter,
        outstanding: list[Pending],
    ):
        def waits_alone(kind: str, start: int, end: int, **facts: Any) -> None:
            if kind == "wait":
                record(kind, start, end, **facts)

        self._rounds: _Rounds = _Rounds(rounds, before._rounds if before else None)
        super().__init__(self._rounds, "exchange", facts, waits_alone, waiter, outstanding, None)

    def describe(self) -> str:
        """What is awaited: the first message that is missing."""
        missing = [p for p in self._rounds.current if not p.test()]
        return f"{super().describe()}: {missing[0].describe()}" if missing else super().describe()


class _Rounds:
    """The rounds as a request that is tested like MPI's own."""

    def __init__(self, rounds: Messages, before: _Rounds | None):
        self._rounds, self._before = rounds, before
        self.current: list[Pending] = next(rounds, [])
        self.begun, self.over = 1, False

    def Test(self) -> bool:
        """Whether all is through; begins every round that can begin."""
        while all(p.test() for p in self.current):
            before = self._before
            if before and not before.over and before.begun <= self.begun:
                return False
            following = next(self._rounds, None)
            if following is None:
                self.over, self._before = True, None
                return True
            self.current = following
            self.begun += 1
        return False
