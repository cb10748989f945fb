"""What is missing from a trace, a line each: ranks of which the same is to be said share one."""

from __future__ import annotations

from collections.abc import Iterable

from hpcpar.analyse.steps import Steps
from hpcpar.trace import Trace
from hpcpar.trace.schema import file_name

NAMED = 8  # ranks in a line


def gaps(trace: Trace, found: Steps) -> list[str]:
    """The lines, most serious first; none for a whole trace of a run that made a step and came to its end."""
    said: dict[str, list[int]] = {}
    for rank, why in [*trace.missing.items(), *trace.gaps.items()]:
        state = "left out, " if rank in trace.missing else ""
        said.setdefault(state + why.replace(file_name(rank), "its file"), []).append(rank)
    out = [f"{named(ranks)}: {why}" for why, ranks in said.items()]
    if not trace.indexed:
        out.append(f"trace.h5, the index, is missing or damaged: there may have been more than the {trace.ranks} ranks that the files name")
    if not trace.description:
        out.append("no file says what the run was: plan, throughput and the bubble that was to be expected are not known")
    if not len(found.numbers):
        have = [r for r in trace.present if len(trace.events(r)) and trace.events(r)["step"].max() > 0]
        out.append(f"no step that all ranks have{f': {named(have)} have some' if have else ': the run ended before its first step did'}")
    if trace.ranks > 1 and not trace.clocks["points"][0]:
        out.append("some rank has no clock point: what its clock was ahead is known from its messages alone, if at all")
    return out


def named(ranks: Iterable[int]) -> str:
    """Ranks in words: a few by number, many by their count."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= NAMED:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"
