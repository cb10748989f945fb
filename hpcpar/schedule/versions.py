"""The version rules, proven from the lists.

flush      no versions; all gradients of a step, then one update
stashing   both passes of a microbatch use, on each stage, the version that is newest there at its forward
vertical   both passes use, on all stages, the version that is newest on the input stage at its forward there
2bw        both passes use, on all stages, version max(first, floor(k / m) - 1): a delay of one; at most two are alive on any stage
"""

from __future__ import annotations

from hpcpar.errors import PlanError
from hpcpar.schedule.action import Kind
from hpcpar.schedule.lifetimes import lifetimes
from hpcpar.schedule.program import Program


def check_versions(program: Program) -> None:
    """Prove the version rule of a program; raises PlanError that names the rank, the place and the action."""
    schedule = program.schedule
    used: dict[tuple[int, int], int] = {}  # (stage, microbatch) -> version of its forward
    for rank, actions in enumerate(program.ranks):
        newest = dict.fromkeys(schedule.stages_of(rank), schedule.first // schedule.group)
        for i, (kind, stage, _, version, _) in enumerate(actions):
            if kind is Kind.U:
                newest[stage] = newest[stage] if version is None else version
            elif kind in (Kind.F, Kind.I, Kind.W, Kind.B):
                if schedule.synchronous:
                    if version is not None:
                        raise _fault(program, rank, i, "a synchronous schedule has no versions")
                    continue
                _one(program, rank, i, newest[stage], used)
    if schedule.rule in ("vertical", "2bw"):
        for (stage, k), version in used.items():
            if used[0, k] != version:
                raise PlanError(
                    f"schedule {schedule.name}: microbatch {k} uses version {version} on stage {stage} and {used[0, k]} on the input "
                    f"stage; {schedule.rule} wants the same on all"
                )
    if schedule.rule == "2bw":  # follows from the delay and the updates; counted all the same
        for rank, found in enumerate(lifetimes(schedule)):
            if found.weight_versions > 2:
                raise PlanError(f"schedule {schedule.name}, rank {rank}: {found.weight_versions} versions are alive at once; 2BW holds two")


def _one(program: Program, rank: int, i: int, newest: int, used: dict[tuple[int, int], int]) -> None:
    """One compute action of an asynchronous schedule."""
    schedule = program.schedule
    kind, stage, k, version, _ = program.ranks[rank][i]
    if version is None or k is None:
        raise _fault(program, rank, i, "an asynchronous schedule names the version, as in 2F5@3")
    if kind is not Kind.F:
        if used[stage, k] != version:
            raise _fault(program, rank, i, f"its forward used version {used[stage, k]}; both passes must use one")
        return
    used[stage, k] = version
    if version > newest:
        raise _fault(program, rank, i, f"version {version} does not exist yet on this stage; the newest is {newest}")
    start = schedule.first // schedule.group
    if version < start:
        raise _fault(program, rank, i, f"version {version} is older than {start}, the one after the drain")
    if (schedule.rule == "stashing" or (schedule.rule == "vertical" and stage == 0)) and version != newest:
        raise _fault(program, rank, i, f"the newest version here is {newest}; {schedule.rule} takes it")
    if schedule.rule == "2bw" and version != max(start, k // schedule.group - 1):
        raise _fault(program, rank, i, f"a delay of one wants version {max(start, k // schedule.group - 1)}")


def _fault(program: Program, rank: int, i: int, why: str) -> PlanError:
    return PlanError(f"schedule {program.schedule.name}, rank {rank}, place {i}, {program.ranks[rank][i]}: {why}")
