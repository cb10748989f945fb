"""Ranges of a flat buffer and whether weight decay applies to them.

parameters   weight (decay) | weight (decay) | gain | bias | weight (decay)
segments     0 ------------------------- 24     24 -- 30     30 -------- 40
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcpar.nn.describe import Parameter


class Segment(NamedTuple):
    """The elements start .. stop - 1 of a flat buffer; `decay` says whether weight decay applies to them."""

    start: int
    stop: int
    decay: bool


def segments_of(parameters: Iterable[Parameter]) -> list[Segment]:
    """The segments of a buffer that holds the parameters one behind the other, all trained; neighbours of one kind are joined."""
    found: list[Segment] = []
    at = 0
    for p in parameters:
        if found and found[-1].decay == p.decay:
            found[-1] = Segment(found[-1].start, at + p.local_size, p.decay)
        else:
            found.append(Segment(at, at + p.local_size, p.decay))
        at += p.local_size
    return found


def within(segments: Sequence[Segment], start: int, stop: int) -> list[Segment]:
    """What of the segments lies in start .. stop - 1, counted from `start`: the segments of a shard."""
    cut = [Segment(max(s.start, start) - start, min(s.stop, stop) - start, s.decay) for s in segments]
    return [s for s in cut if s.start < s.stop]
