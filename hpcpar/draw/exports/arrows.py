"""From each send to the receive of its message, so that a tool draws an arrow.

    rank 0  sends     |=send=|
                      \\
    rank 1  receives  |=under way==|      the receive was posted early: the time since the send is a slice inside it,
               |=======receive=====|      because an arrow to a slice that began before its source would be turned round

A message that arrives no later than it was sent (clocks that were not corrected) gets no arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcpar.trace import Trace


@dataclass(frozen=True)
class Arrows:
    """The arrows at one rank: {row of the event: number} of its sends, {row: (number, time of the send in ns)} of its receives."""

    out: dict[int, int]
    into: dict[int, tuple[int, int]]


class Arrowed:
    """The matched messages of a trace as arrows, numbered from 1; `said` counts them in words."""

    def __init__(self, trace: Trace):
        pairs = trace.messages().pairs
        forward = pairs["received"] > pairs["sent"]
        drawn, without = int(forward.sum()), int((~forward).sum())
        self._pairs = pairs[forward]
        self.said = f"{drawn} messages as arrows"
        if without:
            self.said += f"; {without} that arrive no later than they were sent have none"

    def of(self, rank: int) -> Arrows:
        """Those that begin or end at a rank."""
        number = np.arange(1, len(self._pairs) + 1)
        sent, received = self._pairs["source"] == rank, self._pairs["destination"] == rank
        out = dict(zip(self._pairs["send"][sent].tolist(), number[sent].tolist(), strict=True))
        facts = zip(number[received].tolist(), self._pairs["sent"][received].tolist(), strict=True)
        return Arrows(out, dict(zip(self._pairs["receive"][received].tolist(), facts, strict=True)))
