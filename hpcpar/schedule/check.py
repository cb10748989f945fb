"""Proofs about a program, from its lists alone, before any message is sent.

1. Every stage and microbatch is forwarded once and then differentiated once, on one rank, in the order F, I, W.
2. W is accumulated in ascending order of microbatches on each stage of each rank.
3. A message goes where, and only where, the next stage is on another rank; every send has its receive; sends and receives of one pair of
   ranks, channel and stage are in the same order; a receive is posted before its consumer, a send behind its producer.
4. Updates, reductions, tied gradients and norms stand once for each stage and version, behind all gradients that they need.
5. The version rules (`hpcpar.schedule.versions`).
6. The program ends: a walk through it finds no rank that waits for ever.
"""

from __future__ import annotations

from hpcpar.errors import PlanError
from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.engine import Durations, run
from hpcpar.schedule.program import Program
from hpcpar.schedule.versions import check_versions

F, I, W, B, U = Kind.F, Kind.I, Kind.W, Kind.B, Kind.U
SA, RA, SG, RG, D, T, N = Kind.SA, Kind.RA, Kind.SG, Kind.RG, Kind.D, Kind.T, Kind.N
NEW, FORWARDED, HALF, DONE = range(4)  # how far a microbatch is on a stage


def check(program: Program) -> None:
    """Prove a program; raises PlanError that names the rank, the place and the action of the first fault."""
    s = program.schedule
    if not s.microbatches or not s.stages:
        raise PlanError(f"schedule {s.name} has stages = {s.stages} and microbatches = {s.microbatches}; both must be at least 1")
    _compute(program)
    _messages(program)
    _updates(program)
    check_versions(program)
    zero = [0.0] * s.stages
    run(program, Durations(zero, zero, zero, zero, 0.0, 0.0, 0.0, {}))


def _fault(program: Program, rank: int, i: int, why: str) -> PlanError:
    return PlanError(f"schedule {program.schedule.name}, rank {rank}, place {i}, {program.ranks[rank][i]}: {why}")


def _compute(program: Program) -> None:
    """Proofs 1 and 2."""
    schedule = program.schedule
    S, M, first = schedule.stages, schedule.microbatches, schedule.first
    if len(schedule.placement) < S * M:
        s, missing = next((s, k) for s in range(S) for k in range(first, first + M) if (s, k) not in schedule.placement)
        raise PlanError(f"schedule {schedule.name}: microbatch {missing} of stage {s} has no forward on any rank")
    state, where = bytearray(S * M), [-1] * (S * M)
    for rank, actions in enumerate(program.ranks):
        newest: dict[int, int] = {}  # stage -> the last microbatch accumulated
        for i, (kind, stage, k, _, _) in enumerate(actions):
            if stage >= S:
                raise _fault(program, rank, i, f"there are stages 0 to {S - 1} alone")
            if k is None:
                continue
            if not first <= k < first + M:
                raise _fault(program, rank, i, f"there are microbatches {first} to {first + M - 1} alone")
            key = stage * M + k - first
            if kind is F:
                if state[key] != NEW:
                    raise _fault(program, rank, i, f"is forwarded twice, first on rank {where[key]}")
                state[key], where[key] = FORWARDED, rank
            elif kind is I or kind is B or kind is W:
                if where[key] != rank:
                    on = f"is forwarded on rank {where[key]}" if where[key] >= 0 else "has not been forwarded here"
                    raise _fault(program, rank, i, f"microbatch {k} of stage {stage} {on}")
                wanted = HALF if kind is W else FORWARDED
                if state[key] != wanted:
                    done = "has been differentiated already" if state[key] > wanted else "has had no I yet"
                    raise _fault(program, rank, i, f"microbatch {k} of stage {stage} {done}")
                state[key] = HALF if kind is I else DONE
                if kind is not I:
                    before = newest.get(stage, -1)
                    if before > k:
                        raise _fault(program, rank, i, f"accumulates microbatch {k} after {before}; W must ascend on each stage")
                    newest[stage] = k
    lost = next((key for key, at in enumerate(state) if at != DONE), None)
    if lost is not None:
        what = ("forward", "backward", "weight half of the backward")[state[lost]]
        raise PlanError(f"schedule {schedule.name}: microbatch {first + lost % M} of stage {lost // M} has no {what} on any rank")


def _messages(program: Program) -> None:
    """Proof 3."""
    schedule = program.schedule
    M, first, last = schedule.microbatches, schedule.first, schedule.stages - 1
    place = schedule.placement
    sent: dict[tuple[int, int, bool, int], list[int]] = {}  # (source, target, gradient?, stage whose input it is) -> microbatches
    posted: dict[tuple[int, int, bool, int], list[int]] = {}
    for rank, actions in enumerate(program.ranks):
        ready: set[int] = set()  # 2 x key + gradient?: what this rank may send
        arriving: set[int] = set()
        mine = set(schedule.stages_of(rank))
        for i, (kind, stage, k, _, peer) in enumerate(actions):
            if kind is W or k is None:
                continue
            key = 2 * (stage * M + k - first)
            if kind is F:
                if stage and not (stage - 1 in mine and place[stage - 1, k] == rank):
                    if key not in arriving:
                        raise _fault(
                            program, rank, i, f"its input comes from rank {place[stage - 1, k]} and no receive is posted before it"
                        )
                    arriving.discard(key)
                if stage < last and not (stage + 1 in mine and place[stage + 1, k] == rank):
                    ready.add(key)
            elif kind is I or kind is B:
                if stage < last and not (stage + 1 in mine and place[stage + 1, k] == rank):
                    if key + 1 not in arriving:
                        raise _fault(
                            program, rank, i, f"its gradient comes from rank {place[stage + 1, k]} and no receive is posted before it"
                        )
                    arriving.discard(key + 1)
                if stage and not (stage - 1 in mine and place[stage - 1, k] == rank):
                    ready.add(key + 1)
            elif kind is SA or kind is SG:
                gradient = kind is SG
                if key + gradient not in ready:
                    raise _fault(program, rank, i, "sends what has not been made here, is not wanted elsewhere, or was sent before")
                ready.discard(key + gradient)
                to = place[stage - 1 if gradient else stage + 1, k]
                if peer != to:
                    raise _fault(program, rank, i, f"goes to rank {peer}, but the next stage of the microbatch is on rank {to}")
                sent.setdefault((rank, to, gradient, stage if gradient else stage + 1), []).append(k)
            else:
                gradient = kind is RG
                if key + gradient in arriving:
                    raise _fault(program, rank, i, "is received twice")
                arriving.add(key + gradient)
                posted.setdefault((peer, rank, gradient, stage + 1 if gradient else stage), []).append(k)  # type: ignore[arg-type]
        for what, keys in (("sent", ready), ("used", arriving)):
            if keys:
                s, k = divmod(min(keys) // 2, M)
                of = "input gradient" if min(keys) % 2 else "output"
                if what == "used":
                    of = "output gradient" if min(keys) % 2 else "input"
                raise PlanError(f"schedule {schedule.name}, rank {rank}: the {of} of stage {s}, microbatch {k + first}, is never {what}")
    if sent != posted:
        raise _unpaired(program, sent, posted)


def _unpaired(program: Program, sent: dict, posted: dict) -> PlanError:
    channel = min(c for c in {**sent, **posted} if sent.get(c) != posted.get(c))
    a, b = sent.get(channel, []), posted.get(channel, [])
    n = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    source, target, gradient, stage = channel
    what = f"{'gradients' if gradient else 'activations'} of stage {stage}"
    left, right = (str(x[n]) if n < len(x) else "nothing" for x in (a, b))
    return PlanError(
        f"schedule {program.schedule.name}: message {n} of the {what} from rank {source} to rank {target} is sent for microbatch {left} "
        f"and received for microbatch {right}; both must be in the same order"
    )


def _updates(program: Program) -> None:
    """Proof 4."""
    schedule = program.schedule
    for rank, actions in enumerate(program.ranks):
        for stage in schedule.stages_of(rank):
            _updates_of_stage(program, rank, stage, [(i, a) for i, a in enumerate(actions) if a[1] == stage])


def _updates_of_stage(program: Program, rank: int, stage: int, actions: list[tuple[int, Action]]) -> None:
    schedule = program.schedule
    group, first, last = schedule.group, schedule.first, schedule.last
    needs = [D] * program.has_reduction(stage) + [T] * program.has_tie(stage) + [N] * program.clip
    own = [a[2] for _, a in actions if a[0] is W or a[0] is B]  # ascending, as proven
    ends, before, made = _versions_made(program, rank, actions), first, {}
    next_own = 0
    collected: dict[tuple[Kind, int | None], int] = {}
    done = first - 1  # the last microbatch accumulated so far
    for end, version in ends:
        while next_own < len(own) and own[next_own] < end:  # type: ignore[operator]
            next_own += 1
        made[version] = own[next_own - 1] if next_own and own[next_own - 1] >= before else None  # type: ignore[operator]
        before = end
    if not ends or ends[-1][0] != last:
        upto = ends[-1][0] if ends else first
        update = f"{stage}U" if schedule.synchronous else f"{stage}U{-(-last // group)}"
        raise PlanError(
            f"schedule {schedule.name}, rank {rank}: the gradients of stage {stage} from microbatch {upto} on "
            f"reach no update; end with {update}"
        )
    for i, (kind, _, k, version, _) in actions:
        if kind is W or kind is B:
            done = k  # type: ignore[assignment]
        elif k is None:
            if version not in made:
                raise _fault(program, rank, i, "serves no version that this stage makes")
            needed = made[version]
            if needed is not None and done < needed:
                raise _fault(program, rank, i, f"stands before the gradient of microbatch {needed}, which it needs")
            if kind is not U and kind not in needs:
                raise _fault(program, rank, i, "is not needed here")
            wanted = needs if kind is U else needs[: needs.index(kind)]
            missing = [n for n in wanted if (n, version) not in collected]
            if missing:
                raise _fault(program, rank, i, f"needs {missing[0]} of stage {stage} before it")
            if (kind, version) in collected:
                raise _fault(program, rank, i, "stands twice")
            collected[kind, version] = i


def _versions_made(program: Program, rank: int, actions: list[tuple[int, Action]]) -> list[tuple[int, int | None]]:
    """(end of its microbatches, version) of each update, in order."""
    schedule = program.schedule
    out: list[tuple[int, int | None]] = []
    newest = schedule.first // schedule.group
    for i, a in actions:
        if a.kind is not U:
            continue
        if schedule.synchronous:
            if a.version is not None:
                raise _fault(program, rank, i, "a synchronous schedule has no versions")
            if out:
                raise _fault(program, rank, i, "updates twice in one step")
            out.append((schedule.last, None))
        else:
            if a.version is None or a.version <= newest:
                raise _fault(program, rank, i, f"must make a version above {newest}")
            newest = a.version
            if newest * schedule.group >= schedule.last + schedule.group:
                raise _fault(program, rank, i, f"is named by microbatches behind the last one, {schedule.last - 1}")
            out.append((min(newest * schedule.group, schedule.last), newest))
    return out
