"""Schedules as text: a line a rank, actions between commas, so that a schedule can be written by hand and run.

    # name=mine stages=2 microbatches=2 chunks=1 rule=flush group=2 first=0 paired=no
    0F0,0F1,0B0,0B1,0U
    1F0,1B0,1F1,1B1,1U

The first line may be left out. Then the name is the file's, stages and microbatches are counted, chunks is stages // ranks, and the rule is
"flush" without versions, "stashing" with them. Messages and reductions are added later and have no place here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcpar.errors import PlanError
from hpcpar.schedule.action import COMPUTE, Action, Kind, parse
from hpcpar.schedule.program import Schedule

RULES = ("flush", "stashing", "vertical", "2bw")
HEAD = ("name", "stages", "microbatches", "chunks", "rule", "group", "first", "paired")


def dumps(schedule: Schedule) -> str:
    """The text of a schedule."""
    s = schedule
    values = (s.name, s.stages, s.microbatches, s.chunks, s.rule, s.group, s.first, "yes" if s.paired else "no")
    head = "# " + " ".join(f"{key}={value}" for key, value in zip(HEAD, values, strict=True))
    return "\n".join([head, *(",".join(map(str, actions)) for actions in s.ranks)]) + "\n"


def loads(text: str, name: str) -> Schedule:
    """Read the text of a schedule; raises PlanError that names the line."""
    head: dict[str, str] = {}
    ranks: list[tuple[Action, ...]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line.startswith("#"):
            pairs = (item.partition("=") for item in line[1:].split())
            head.update({key: value for key, sign, value in pairs if sign and key in HEAD})
        elif line:
            ranks.append(_rank(name, number, line))
    if not ranks:
        raise PlanError(f"{name} holds no schedule; write a line a rank, such as 0F0,0B0,0U")
    every = [a for actions in ranks for a in actions]
    microbatches = [a.microbatch for a in every if a.microbatch is not None]
    if not microbatches:
        raise PlanError(f"{name} holds updates alone; a schedule needs a forward and a backward of every microbatch on every stage")
    versions = any(a.version is not None for a in every)
    first = _number(name, head, "first", 0)
    stages = _number(name, head, "stages", max(a.stage for a in every) + 1)
    m = _number(name, head, "microbatches", max(microbatches) + 1 - first)
    chunks = _number(name, head, "chunks", max(1, stages // len(ranks)))
    rule = head.get("rule", "stashing" if versions else "flush")
    if rule not in RULES:
        raise PlanError(f"{name}: rule = {rule!r} is not known; use one of {', '.join(RULES)}")
    if (rule != "flush") != versions:
        have = "names versions" if versions else "names no version"
        raise PlanError(f"{name}: rule = {rule}, but the list {have}; write 2F5@3 and 2U4, or 2F5 and 2U for flush")
    group = _number(name, head, "group", m if rule == "flush" else 1)
    if min(stages, m, chunks, group) < 1:
        raise PlanError(f"{name}: stages = {stages}, microbatches = {m}, chunks = {chunks}, group = {group} must all be at least 1")
    if max(stages, m) > len(every):
        raise PlanError(f"{name}: stages = {stages} and microbatches = {m} need more than the {len(every)} actions; correct the numbers")
    schedule = Schedule(
        head.get("name", name),
        stages,
        m,
        chunks,
        tuple(ranks),
        rule == "flush",
        rule,  # type: ignore[arg-type]  # one of RULES
        group,
        first,
        paired=head.get("paired") == "yes",
    )
    replicas = tuple(len(schedule.holders(s)) for s in range(stages))
    return replace(schedule, replicas=replicas) if rule != "flush" and max(replicas) > 1 else schedule


def write(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule as text."""
    Path(path).write_text(dumps(schedule))


def read(path: str | Path) -> Schedule:
    """Read a schedule from a file; raises PlanError where it cannot be read."""
    try:
        return loads(Path(path).read_text(), Path(path).stem)
    except (OSError, UnicodeDecodeError) as e:
        raise PlanError(f"cannot read the schedule {path}: {getattr(e, 'strerror', None) or 'it is not text'}") from None


def _rank(name: str, number: int, line: str) -> tuple[Action, ...]:
    out = []
    for word in line.split(","):
        if not word.strip():
            continue
        try:
            action = parse(word)
        except PlanError as e:
            raise PlanError(f"{name}, line {number}: {e}") from None
        if action.kind not in COMPUTE and action.kind is not Kind.U:
            raise PlanError(f"{name}, line {number}: {action} is a message or a collective, which are added later; leave it out")
        out.append(action)
    return tuple(out)


def _number(name: str, head: dict[str, str], key: str, default: int) -> int:
    text = head.get(key, str(default))
    if not text.isdigit():
        raise PlanError(f"{name}: {key} = {text!r} is no number")
    return int(text)
