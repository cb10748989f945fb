"""What is said of a program that waits for itself: the grid of its lists with the places marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcpar.errors import PlanError
from hpcpar.schedule.action import Kind

if TYPE_CHECKING:
    from hpcpar.schedule.program import Program

BEFORE, AFTER = 4, 4  # actions shown on either side of the place


def stuck(program: Program, at: list[int]) -> PlanError:
    """The error for ranks that stand before action at[rank] of their lists."""
    rows, reasons = [], []
    for rank, (i, actions) in enumerate(zip(at, program.ranks, strict=True)):
        words = [str(a) for a in actions]
        left = (["…"] if i > BEFORE else []) + words[max(0, i - BEFORE) : i]
        right = words[i + 1 : i + 1 + AFTER] + (["…"] if i + 1 + AFTER < len(words) else [])
        here = f">>{words[i]}<<" if i < len(words) else ">>end<<"
        rows.append((rank, " ".join(left), here, " ".join(right)))
        if i < len(words):
            reasons.append(f"rank {rank} stands at {words[i]} and waits for {_cause(program, rank, i)}")
    wide, mark = max(len(r[1]) for r in rows), max(len(r[2]) for r in rows)
    grid = [f"  rank {rank:<3} {left:>{wide}} {here:<{mark}} {right}".rstrip() for rank, left, here, right in rows]
    return PlanError("\n".join([f"deadlock: schedule {program.schedule.name} waits for itself", *grid, *reasons]))


def _cause(program: Program, rank: int, i: int) -> str:
    """What the action at a place waits for, in words."""
    action = program.ranks[rank][i]
    schedule, (kind, s, k, version, _) = program.schedule, action
    if kind is Kind.F:
        return f"the output of stage {s - 1}, microbatch {k}, {_sender(program, Kind.SA, s - 1, k)}"
    if kind in (Kind.I, Kind.B):
        return f"the gradient from stage {s + 1}, microbatch {k}, {_sender(program, Kind.SG, s + 1, k)}"
    if kind is Kind.D:
        return f"the other ranks {[r for r in schedule.holders(s) if r != rank]} of stage {s} to reduce{_of(version)}"
    if kind is Kind.N:
        return f"the tied gradient of stage {schedule.stages - 1 - s}{_of(version)}"
    return f"the gradient norm or tied gradient{_of(version)} of other stages"


def _sender(program: Program, kind: Kind, stage: int, k: int | None) -> str:
    for rank, actions in enumerate(program.ranks):
        for i, a in enumerate(actions):
            if a.kind is kind and a.stage == stage and a.microbatch == k:
                return f"sent by rank {rank} at place {i}"
    return "which nobody sends"


def _of(version: int | None) -> str:
    return "" if version is None else f" of version {version}"
