"""What a schedule's module declares: how its lists are made, and what bounds its parameters.

FAMILIES = {"1f1b": Synchronous(actions)}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcpar.schedule.action import Action
from hpcpar.schedule.program import Rule


@dataclass(frozen=True)
class Synchronous:
    """A schedule of one step: `make(p, m, v)` gives the compute actions of each of p ranks.

    `chunks` is v, stages a rank, None where v is free; `copies` is how many ranks hold each stage; `paired` says that a forward and the
    backward behind it are one block, as in DualPipe, where m >= 2p.
    """

    make: Callable[[int, int, int], list[list[Action]]]
    chunks: int | None = 1
    copies: int = 1
    paired: bool = False


@dataclass(frozen=True)
class Asynchronous:
    """A schedule without flushes: which rule gives the versions, and whether a version takes m microbatches or one."""

    rule: Rule
    grouped: bool = False


Family = Synchronous | Asynchronous
