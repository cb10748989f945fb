"""Schedules by name: the registry, and what turns a name and its parameters into lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpcpar.errors import PlanError
from hpcpar.schedule import (
    chimera,
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    zb_h1,
    zb_h2,
    zb_v,
)
from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.family import Asynchronous, Family, Synchronous
from hpcpar.schedule.flow import Flow
from hpcpar.schedule.program import Rule, Schedule
from hpcpar.schedule.text import read

MODULES = (
    naive,
    gpipe,
    one_f_one_b,
    interleaved,
    zb_h1,
    zb_h2,
    zb_v,
    dualpipe,
    dualpipe_v,
    chimera,
    pipedream,
    pipedream_2bw,
)
SCHEDULES: dict[str, Family] = {name: family for module in MODULES for name, family in module.FAMILIES.items()}


def family_of(name: str) -> Family:
    """The family of a name; raises PlanError with the known names."""
    if name not in SCHEDULES:
        raise PlanError(f"schedule {name!r} is not known; use one of {', '.join(SCHEDULES)} or a .csv file")
    return SCHEDULES[name]


def generate(
    name: str,
    *,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    accumulate: int = 1,
    batches: int = 4,
    first: int = 0,
    replicas: Sequence[int] = (),
    updates: str = "lazy",
) -> Schedule:
    """The lists of a schedule over `stages` pipeline ranks.

    Synchronous: one step of accumulate x microbatches. Asynchronous: from drain to drain, `microbatches` minibatches for pipedream and
    pipedream-vertical, `batches` updates of `microbatches` for pipedream-2bw; `first` is the minibatch (the batch for 2bw) after the drain.
    A name that ends in .csv is read from that file, whose numbers must be these.
    Raises PlanError where the parameters do not fit the schedule.
    """
    if name.endswith(".csv"):
        return from_file(name, stages=stages, microbatches=microbatches, accumulate=accumulate)
    family = family_of(name)
    _positive(stages=stages, microbatches=microbatches, chunks=chunks, accumulate=accumulate, batches=batches)
    if isinstance(family, Asynchronous):
        if accumulate > 1:
            raise PlanError(f"{name} with accumulate = {accumulate}: it has no flush to put off; use accumulate = 1")
        count = batches if family.grouped else microbatches
        group = microbatches if family.grouped else 1
        whole = flow(name, stages=stages, group=group, first=first, last=first + count, chunks=chunks, replicas=replicas, updates=updates)
        return whole.schedule()
    if replicas:
        raise PlanError(f"replicas = {list(replicas)} with {name}: only pipedream has replicas a stage; use dp")
    v = _chunks(name, family, chunks)
    _copies(name, family, stages, microbatches)
    once = family.make(stages, microbatches, v)
    lists = tuple((*mine, *(Action(Kind.U, s) for s in sorted({a.stage for a in mine}))) for mine in once)
    paired = family.paired and microbatches >= 2 * stages
    step = Schedule(name, stages * v, microbatches, v, lists, True, "flush", microbatches, paired=paired)
    return _repeated(step, accumulate)


def from_file(path: str, *, stages: int, microbatches: int, accumulate: int = 1) -> Schedule:
    """A schedule that was written as text, for so many pipeline ranks and microbatches; raises PlanError for other numbers."""
    schedule = read(path)
    for what, wanted, found in (("ranks", stages, len(schedule.ranks)), ("microbatches", microbatches, schedule.microbatches)):
        if wanted != found:
            raise PlanError(f"{path} is written for {found} {what}, not for {wanted}; use {found}, or write another schedule")
    if accumulate > 1 and not schedule.synchronous:
        raise PlanError(f"{path} with accumulate = {accumulate}: it has no flush to put off; use accumulate = 1")
    return _repeated(schedule, accumulate)


def _repeated(schedule: Schedule, times: int) -> Schedule:
    """A synchronous schedule `times` times back to back, with one update at the end."""
    if times == 1:
        return schedule
    m = schedule.microbatches
    lists = []
    for actions in schedule.ranks:
        compute = [a for a in actions if a.microbatch is not None]
        again = [a._replace(microbatch=a.microbatch + x * m) for x in range(times) for a in compute]  # type: ignore[operator]
        lists.append((*again, *(a for a in actions if a.microbatch is None)))
    return replace(schedule, microbatches=times * m, group=times * m, ranks=tuple(lists))


def flow(
    name: str,
    *,
    stages: int,
    group: int = 1,
    first: int,
    last: int,
    chunks: int = 1,
    replicas: Sequence[int] = (),
    updates: str = "lazy",
) -> Flow:
    """An asynchronous schedule from drain `first` to drain `last`, in minibatches (batches of `group` microbatches for pipedream-2bw).

    Updates are "eager", right behind the last gradient of a version, or "lazy", just before the first forward that needs it; with stashing
    both are the same. Raises PlanError where the parameters do not fit the schedule.
    """
    if name.endswith(".csv"):
        raise PlanError(f"{name} holds lists from one drain to the next and cannot be continued; name an asynchronous schedule")
    family = family_of(name)
    if not isinstance(family, Asynchronous):
        raise PlanError(f"{name} is synchronous: it has steps, no flow from drain to drain; use generate")
    if updates not in ("lazy", "eager"):
        raise PlanError(f'updates = {updates!r} is not known; use "lazy" or "eager"')
    if chunks != 1:
        raise PlanError(f"{name} with chunks = {chunks}: a rank holds one stage; use chunks = 1")
    if replicas and len(replicas) != stages:
        raise PlanError(f"replicas = {list(replicas)} has {len(replicas)} entries for {stages} stages; give one a stage")
    if any(r < 1 for r in replicas):
        raise PlanError(f"replicas = {list(replicas)}: every stage needs at least one")
    size = group if family.grouped else 1
    return Flow(name, family.rule, tuple(replicas) or (1,) * stages, size, first * size, last * size, updates == "lazy")


def require_common_version(name: str, *, clip: bool, tied: bool) -> None:
    """Refuse what needs one version on all stages where a schedule has none; raises PlanError."""
    if rule_of(name) == "stashing" and (clip or tied):
        what, off = ("clipping by a global norm", "clip = 0") if clip else ("a tied weight", "tied = false")
        raise PlanError(
            f"{name} gives every stage its own weight version, so {what} has no common version to act on; "
            f"use pipedream-vertical, pipedream-2bw or {off}"
        )


def rule_of(name: str) -> Rule:
    """The version rule of a schedule by name or of a .csv file; "flush" for the synchronous ones."""
    if name.endswith(".csv"):
        return read(name).rule
    family = family_of(name)
    return family.rule if isinstance(family, Asynchronous) else "flush"


def _positive(**numbers: int) -> None:
    for name, n in numbers.items():
        if n < 1:
            raise PlanError(f"{name} = {n} must be at least 1")


def _chunks(name: str, family: Synchronous, chunks: int) -> int:
    if family.chunks is None:
        return chunks
    if chunks not in (1, family.chunks):
        raise PlanError(f"{name} with chunks = {chunks}: a rank holds {family.chunks} of its chunks; use chunks = {family.chunks}")
    return family.chunks


def _copies(name: str, family: Synchronous, p: int, m: int) -> None:
    if family.copies == 1:
        return
    if p % 2:
        raise PlanError(f"{name} on {p} ranks: its two copies meet in the middle, so stages must be even; use {p + 1}")
    if m < 2:
        raise PlanError(f"{name} with microbatches = {m}: each of its two directions needs one; use microbatches >= 2")
