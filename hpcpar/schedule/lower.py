"""The passes that turn compute and updates into what runs: messages, reductions, tied gradients, norms.

    compute     0F0              0F1              0B0
    messages    0F0  0SA0>1      0RG0<1 0F1 0SA1>1        0B0        a receive stands one compute ahead of its consumer,
                                                                     a send right behind its producer

Where a forward and the backward behind it are one block (DualPipe), the forward's output leaves at the end of the block.
A receive is the posting of a non-blocking one; the compute action that consumes it waits. Nothing but D blocks.
D follows the last W of its stage; where copies share a stage, all D stand at the end in order of stages, the same on every rank.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from hpcpar.errors import PlanError
from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.flow import Flow
from hpcpar.schedule.program import Program, Schedule

F, I, W, B, U = Kind.F, Kind.I, Kind.W, Kind.B, Kind.U
Place = Callable[[int, int], "int | None"]


def lower(schedule: Schedule, *, tied: bool = False, reduce: bool = False, clip: bool = False) -> Program:
    """Add the messages and collectives of a schedule.

    tied: the first and last stage share a weight; reduce: there are data-parallel replicas outside the lists; clip: the gradient norm is
    wanted as actions (asynchronous updates wait for it without a collective).
    """
    program = Program(schedule, schedule.ranks, tied, reduce, clip)
    collect = _synchronous if schedule.synchronous else _asynchronous
    place = schedule.placement
    lists = []
    for rank, actions in enumerate(schedule.ranks):
        collected = list(collect(program, rank, actions))
        lists.append(tuple(_messages(rank, collected, lambda s, k: place.get((s, k)), schedule.stages, schedule.paired)))
    return Program(schedule, tuple(lists), tied, reduce, clip)


def stream(flow: Flow, rank: int, *, tied: bool = False, reduce: bool = False, clip: bool = False) -> Iterator[Action]:
    """What one rank runs from drain to drain, made as it is asked for; the same actions as `lower(flow.schedule(), ...).ranks[rank]`."""
    stage, _ = flow.place(rank)
    kinds = _closing(reduce or flow.replicas[stage] > 1, tied and flow.stages > 1 and stage in (0, flow.stages - 1), clip)
    return _messages(rank, _close(flow.compute(rank), kinds, flow.closes), flow.rank_of, flow.stages)


def _messages(rank: int, actions: Iterable[Action], place: Place, stages: int, paired: bool = False) -> Iterator[Action]:
    """Add sends behind their producers and receives one compute ahead of their consumers."""
    held: list[Action] = []  # the last compute action and what follows it, until the receives of the next one are known
    late: list[Action] = []  # the send of a forward that is one block with the backward behind it
    new = Action._make
    for a in actions:
        kind, stage, k, _, _ = a
        if kind is F:
            if stage > 0:
                source = place(stage - 1, k)  # type: ignore[arg-type]
                if source is not None and source != rank:
                    yield new((Kind.RA, stage, k, None, source))
            yield from held
            held = [a]
            if stage + 1 < stages:
                target = place(stage + 1, k)  # type: ignore[arg-type]
                if target is not None and target != rank:
                    held.append(new((Kind.SA, stage, k, None, target)))
        elif kind is I or kind is B:
            if stage + 1 < stages:
                source = place(stage + 1, k)  # type: ignore[arg-type]
                if source is not None and source != rank:
                    yield new((Kind.RG, stage, k, None, source))
            if paired and kind is B and held and held[0].kind is F and held[0].stage != stage:
                late, held = held[1:], held[:1]
            yield from held
            held = [a, *late]
            late = []
            if stage > 0:
                target = place(stage - 1, k)  # type: ignore[arg-type]
                if target is not None and target != rank:
                    held.append(new((Kind.SG, stage, k, None, target)))
        elif kind is W:
            yield from held
            held = [a]
        else:
            held.append(a)
    yield from held


def _closing(reduced: bool, tied: bool, clip: bool) -> list[Kind]:
    return [Kind.D] * reduced + [Kind.T] * tied + [Kind.N] * clip


def _asynchronous(program: Program, rank: int, actions: tuple[Action, ...]) -> Iterator[Action]:
    """Add D, T and N of each version behind the last W of its microbatches on this rank, found from the updates in the list."""
    schedule = program.schedule
    own = sorted({a.microbatch for a in actions if a.kind in (W, B)})  # type: ignore[type-var]  # a backward names one
    stages = schedule.stages_of(rank)
    if len(stages) != 1:
        raise PlanError(f"rank {rank} of {schedule.name} holds stages {list(stages)}; an asynchronous schedule holds one a rank")
    closes: dict[tuple[int, int], int] = {}
    before = schedule.first // schedule.group
    for a in actions:
        if a.kind is U:
            if a.version is None:
                raise PlanError(f"{a} of {schedule.name} makes no version; write the number behind it, as in {a}{before + 1}")
            upto = bisect_left(own, a.version * schedule.group)  # type: ignore[type-var]
            if upto and own[upto - 1] >= before * schedule.group:  # type: ignore[operator]
                closes[a.stage, own[upto - 1]] = a.version  # type: ignore[index]
            before = a.version
    stage = stages[0]
    kinds = _closing(program.has_reduction(stage), program.has_tie(stage), program.clip)
    yield from _close(actions, kinds, lambda s, k: closes.get((s, k)))


def _close(actions: Iterable[Action], kinds: list[Kind], closes: Place) -> Iterator[Action]:
    done = -1  # the newest version whose gradients have been closed
    for a in actions:
        if a.kind is U and a.version is not None and a.version > done:  # none of its microbatches ran here: a partial round
            done = a.version
            yield from (Action(kind, a.stage, None, done) for kind in kinds)
        yield a
        if a.kind is W or a.kind is B:
            version = closes(a.stage, a.microbatch)  # type: ignore[arg-type]
            if version is not None:
                done = version
                yield from (Action(kind, a.stage, None, version) for kind in kinds)


def _synchronous(program: Program, rank: int, actions: tuple[Action, ...]) -> Iterator[Action]:
    """Add D behind the last W of a stage (before the updates where it has copies), then T and N before the updates."""
    schedule = program.schedule
    stages = schedule.stages_of(rank)
    late = [s for s in stages if len(schedule.holders(s)) > 1]
    early = [s for s in stages if program.reduce and s not in late]
    last = {a.stage: i for i, a in enumerate(actions) if a.kind in (W, B)}
    after = {last[s]: s for s in early if s in last}
    tail = [Action(Kind.D, s) for s in late] + [Action(Kind.T, s) for s in stages if program.has_tie(s)]
    tail += [Action(Kind.N, s) for s in stages if program.clip]
    updates = next((i for i, a in enumerate(actions) if a.kind is U), len(actions))
    for i, a in enumerate(actions):
        if i == updates:
            yield from tail
        yield a
        if i in after:
            yield Action(Kind.D, after[i])
