"""A naive event simulation, written from the definitions alone: sweep over the ranks until nothing moves."""

from __future__ import annotations

from hpcpar.schedule import Schedule


def simulate(schedule: Schedule, F, I, W, comm=0.0) -> dict[tuple[int, str, int, int], tuple[float, float]]:
    """(rank, kind, stage, microbatch) -> (start, end); F, I and W hold a time for each stage.

    An action starts when the one before it on its rank has ended and its input is there; a message between ranks takes `comm`. In a paired
    schedule the output of a forward that stands directly before a whole backward of another stage leaves at the end of the backward. An
    update waits for all ranks that hold its stage.
    """
    lists = [[(a.kind.value, a.stage, a.version if a.kind == "U" else a.microbatch) for a in actions] for actions in schedule.ranks]
    takes = {"F": F, "I": I, "W": W, "B": [i + w for i, w in zip(I, W, strict=True)]}
    where = {(stage, k): rank for rank, actions in enumerate(lists) for kind, stage, k in actions if kind == "F"}
    done: dict[tuple[int, str, int, int], tuple[float, float]] = {}
    leaves: dict[tuple[str, int, int], float] = {}  # activation or gradient of (stage, microbatch) -> when it leaves
    holders = [sum(any(a[1] == s for a in actions) for actions in lists) for s in range(schedule.stages)]
    updating: dict[tuple[int, int | None], dict[int, float]] = {}
    at, clock = [0] * len(lists), [0.0] * len(lists)
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(lists):
            while at[rank] < len(actions):
                kind, stage, k = actions[at[rank]]
                start = clock[rank]
                if kind == "U":
                    met = updating.setdefault((stage, k), {})
                    met.setdefault(rank, start)
                    if len(met) < holders[stage]:
                        break
                    clock[rank] = max(met.values())
                    at[rank] += 1
                    moved = True
                    continue
                needs = None
                if kind == "F" and stage > 0:
                    needs = ("activation", stage - 1, k)
                elif kind in "IB" and stage < schedule.stages - 1:
                    needs = ("gradient", stage + 1, k)
                if needs is not None:
                    if needs not in leaves:
                        break
                    away = where[needs[1], k] != rank
                    start = max(start, leaves[needs] + (comm if away else 0.0))
                end = start + takes[kind][stage]
                done[rank, kind, stage, k] = start, end
                if kind == "F":
                    following = actions[at[rank] + 1] if at[rank] + 1 < len(actions) else None
                    late = schedule.paired and following is not None and following[0] == "B" and following[1] != stage
                    if not late or where.get((stage + 1, k)) == rank:
                        leaves["activation", stage, k] = end
                elif kind in "IB":
                    leaves["gradient", stage, k] = end
                    before = actions[at[rank] - 1] if at[rank] else None
                    if schedule.paired and kind == "B" and before is not None and before[0] == "F" and before[1] != stage:
                        leaves["activation", before[1], before[2]] = end
                clock[rank] = end
                at[rank] += 1
                moved = True
    assert all(i == len(actions) for i, actions in zip(at, lists, strict=True)), "the simulation stands still"
    return done


def spans(done) -> dict[int, tuple[float, float]]:
    """First start and last end of each rank."""
    out: dict[int, tuple[float, float]] = {}
    for (rank, *_), (start, end) in done.items():
        a, b = out.get(rank, (start, end))
        out[rank] = min(a, start), max(b, end)
    return out
