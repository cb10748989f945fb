"""A refusal of one rank is one of all: said once, by rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcpar.comm.world import World
from hpcpar.errors import PlanError


def agreed(world: World, work: Callable[[], Any]) -> Any:
    """The result of `work`; if any rank refuses, all do, and rank 0 says the first refusal."""
    out, problem = None, None
    try:
        out = work()
    except PlanError as e:
        problem = str(e)
    problems = world.gather(problem)
    first = world.share(next((p for p in problems if p is not None), None) if problems is not None else None)
    if first is not None:
        error = PlanError(first)
        error.quiet = world.rank != 0
        raise error
    return out
