"""A large trace made at once: pipelines of `STAGES` ranks side by side, 1F1B-like steps, skewed and drifting clocks with their points."""

import numpy as np

from hpcpar.config import build, tables
from hpcpar.trace import schema
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

STAGES, MICROBATCHES, TICK = 4, 8, 100_000  # ns


def description(ranks):
    """A configuration of ranks = dp x 4 stages."""
    dp = ranks // STAGES
    plan = {"dp": dp, "pp": STAGES, "microbatches": MICROBATCHES}
    model = {"layers": STAGES, "width": 8, "heads": 2, "vocabulary": 16, "context": 5}
    return {"config": tables(build({"model": model, "plan": plan, "train": {"batch": dp * MICROBATCHES}}))}


def step_of(stage):
    """The events of one step of a stage (n,) EVENT from time 0 on, by the true clock; a peer is a difference of ranks, moved by 10."""
    rows = []

    def add(kind, start, end, operation=0, axis=0, microbatch=-1, away=None, size=0, stage=stage):
        rows.append((start, end, kind, operation, axis, stage, microbatch, -1, 0, -1 if away is None else 10 + away, size, 0))

    for m in range(MICROBATCHES):
        at = (stage + 4 * m) * TICK
        if stage:
            add(Kind.RECEIVE, at - TICK, at, Operation.ACTIVATION, Axis.PP, m, -1, 160)
            add(Kind.WAIT, at - TICK // 2, at, Operation.ACTIVATION, Axis.PP, m, -1, 160)
        add(Kind.F, at, at + TICK - 500, microbatch=m)
        if stage < STAGES - 1:
            add(Kind.SEND, at + TICK - 400, at + TICK - 200, Operation.ACTIVATION, Axis.PP, m, 1, 160)
        back = (2 * STAGES + 1 - stage + 4 * m) * TICK + 2 * TICK
        if stage < STAGES - 1:
            add(Kind.RECEIVE, back - TICK, back, Operation.GRADIENT, Axis.PP, m, 1, 160)
        add(Kind.B, back, back + TICK - 500, microbatch=m)
        if stage:
            add(Kind.SEND, back + TICK - 400, back + TICK - 200, Operation.GRADIENT, Axis.PP, m, -1, 160)
    end = (3 * STAGES + 4 * MICROBATCHES) * TICK
    add(Kind.COLLECTIVE, end, end + TICK, Operation.ALLREDUCE, Axis.DP, size=4000)
    add(Kind.UPDATE, end + TICK, end + 2 * TICK)
    add(Kind.COLLECTIVE, end + 2 * TICK, end + 3 * TICK, Operation.LOSS, Axis.WORLD, size=16, stage=-1)
    return np.array(rows, schema.EVENT), end + 4 * TICK


def write_wide(folder, ranks, events, flushes=20, points=True):
    """Write about `events` events a rank; rank r's clock is r % 7 seconds ahead and runs 1e-4 (r % 3 - 1) too fast. Returns the steps."""
    described = description(ranks)
    for rank in range(ranks):
        one, length = step_of(rank // (ranks // STAGES))
        steps = max(1, events // 49)  # on average over the stages
        rows = np.tile(one, steps)
        number = np.repeat(np.arange(steps), len(one))
        rows["step"] = number + 1
        rows["peer"] = np.where(rows["peer"] >= 0, rank + (rows["peer"] - 10) * (ranks // STAGES), -1)
        ahead, drift = (rank % 7) * 1_000_000_000, 1e-4 * (rank % 3 - 1)

        def local(true, ahead=ahead, drift=drift):
            return true + ahead + np.rint(drift * true).astype(np.int64)

        for name in ("start", "end"):
            rows[name] = local(rows[name] + number * length + length)
        with Writer(folder, rank, ranks, described) as writer:
            for true in np.array([0, (steps + 2) * length]) if points else ():
                writer.clock(int(local(true)), int(true - local(true)), 500)
            for part in np.array_split(rows, flushes):
                writer.step = int(part["step"][-1])
                writer._events.extend(part.tolist())
                writer.memory("stash", 1000 + rank)
                writer.flush()
    write_index(folder, ranks, described)
    return steps
