"""Traces written by hand, with times in ms, so that every measure can be worked out on paper."""

from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

MS = 1_000_000


def config(**tables):
    """Complete tables of a configuration."""
    from hpcpar.config import build
    from hpcpar.config import tables as complete

    return complete(build(tables))


def write(folder, ranks, description=None, count=None):
    """Write a trace: `ranks` holds for each rank a list of (step, kind, start ms, end ms, facts), ("memory", kind, bytes) and
    ("metric", step, name, value) and ("pairs", step, {peer: bytes}) rows."""
    description = description or {}
    for rank, events in enumerate(ranks):
        if events is None:
            continue
        with Writer(folder, rank, count or len(ranks), description) as writer:
            for event in events:
                if event[0] == "memory":
                    writer.memory(*event[1:])
                    continue
                if event[0] == "metric":
                    writer.step = event[1]
                    writer.metric(*event[2:])
                    continue
                if event[0] == "pairs":
                    writer.step = event[1]
                    writer.pairs(1, Operation.DISPATCH, Axis.EP, tuple(event[2]), tuple(event[2].values()))
                    continue
                writer.step, kind, start, end, *facts = event
                writer.record(kind, round(start * MS), round(end * MS), **(facts[0] if facts else {}))
    write_index(folder, count or len(ranks), description)
    return folder


def message(peer, size, operation=Operation.ACTIVATION):
    """The facts of a message along the pipeline."""
    return {"operation": operation, "axis": Axis.PP, "peer": peer, "bytes": size}


def collective(size, operation=Operation.ALLREDUCE, axis=Axis.DP):
    """The facts of a collective."""
    return {"operation": operation, "axis": axis, "bytes": size}


def two_stages(step, at=0.0):
    """A step of 1F1B with p = 2, m = 2, F = 1, B = 2 ms that begins at `at`; messages take no time.

        0  1  2  3  4  5  6  7  8  9
    0   F0 F1 .  B0 B0 .  B1 B1          then U: 1 ms, waiting 1 ms of it
    1      F0 B0 B0 F1 B1 B1
    """

    def act(kind, start, end, stage, microbatch):
        return (step, kind, at + start, at + end, {"stage": stage, "microbatch": microbatch})

    F, B = Kind.F, Kind.B
    first = [
        act(F, 0, 1, 0, 0),
        (step, Kind.SEND, at + 1, at + 1.5, message(1, 100)),
        act(F, 1, 2, 0, 1),
        (step, Kind.SEND, at + 2, at + 2.25, message(1, 100)),
        (step, Kind.WAIT, at + 2, at + 4, message(1, 100, Operation.GRADIENT)),
        (step, Kind.RECEIVE, at + 1, at + 4, message(1, 100, Operation.GRADIENT)),
        act(B, 4, 6, 0, 0),
        (step, Kind.WAIT, at + 6, at + 7, message(1, 100, Operation.GRADIENT)),
        act(B, 7, 9, 0, 1),
        (step, Kind.COLLECTIVE, at + 8, at + 9.5, collective(4000)),
        (step, Kind.WAIT, at + 9, at + 9.5, collective(4000)),
        (step, Kind.UPDATE, at + 9, at + 10),
    ]
    second = [
        (step, Kind.WAIT, at, at + 1, message(0, 100)),
        act(F, 1, 2, 1, 0),
        act(B, 2, 4, 1, 0),
        (step, Kind.SEND, at + 4, at + 4, message(0, 100, Operation.GRADIENT)),
        act(F, 4, 5, 1, 1),
        act(B, 5, 7, 1, 1),
        (step, Kind.SEND, at + 7, at + 7, message(0, 100, Operation.GRADIENT)),
        (step, Kind.COLLECTIVE, at + 7, at + 8, collective(8000)),
        (step, Kind.UPDATE, at + 9, at + 10),
    ]
    return first, second


PIPE = {
    "config": config(
        model={"layers": 2, "width": 8, "heads": 2, "vocabulary": 16, "context": 5}, plan={"pp": 2, "microbatches": 2}, train={"batch": 6}
    )
}


def pipe(folder, steps=3, every=20.0, description=PIPE):
    """A run of `two_stages` steps; the first takes twice as long to begin."""
    ranks = [[], []]
    for step in range(1, steps + 1):
        for mine, events in zip(ranks, two_stages(step, every * step), strict=True):
            mine += events
    return write(folder, ranks, description)
