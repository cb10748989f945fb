"""How fast a training step is, as ratios of figures taken in turn in one run: a loaded or slower machine moves both.

step      arithmetic of a step / seconds          against the float32 matrix rate of this process
trace     seconds of a step with the trace        against without
scaling   seconds of a step of one rank alone     against all ranks together, with the same work a rank; and what the loss is made of:

          alone  --- all ranks at once, each for itself --- together
                 contention: cores share memory           synchronisation: sums, and ranks that wait for each other
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcpar import config
from hpcpar.comm.world import World
from hpcpar.measure.rates import matrix_rate
from hpcpar.nn.describe import step_flops
from hpcpar.run import settings
from hpcpar.run.recorder import Recorder
from hpcpar.run.synchronous import Synchronous
from hpcpar.run.train import Session
from hpcpar.trace.writer import Writer

MODEL = {"layers": 6, "width": 384, "heads": 6, "context": 256, "vocabulary": 256}
BATCH = 8  # samples a rank
MICROBATCHES = 4  # of the weak scaling


def trainer_of(world: World, dp: int = 1, batch: int = BATCH, **plan: Any) -> Synchronous:
    """The benchmark's model on this rank, one thread a rank, on real text."""
    tables = {
        "model": MODEL,
        "plan": {"dp": dp, **plan},
        "train": {"batch": batch * dp, "precision": "float32"},
        "run": {"threads": 1, "trace": "off"},
    }
    settings.keep_memory()
    trainer = Session(config.build(tables), world, Recorder()).trainer
    assert isinstance(trainer, Synchronous)
    return trainer


def timed(work: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def step(world: World, rounds: int = 9) -> dict[str, float]:
    """The step's arithmetic as a fraction of the matrix rate, each measured `rounds` times in turn."""
    trainer = trainer_of(world)
    trainer.step()
    rates, seconds = [], []
    for _ in range(rounds):
        rates.append(matrix_rate("float32"))
        seconds.append(timed(trainer.step))
    rates.append(matrix_rate("float32"))
    flops, s = step_flops(trainer.config.model, BATCH), statistics.median(seconds)
    beside = [f / t for t, f in zip(seconds, [flops] * rounds, strict=True)]
    ratios = [b / ((x + y) / 2) for b, x, y in zip(beside, rates, rates[1:], strict=False)]
    return {
        "step_s": s,
        "step_flops": flops,
        "step_flops_per_s": flops / s,
        "matrix_flops_per_s": statistics.median(rates),
        "fraction": statistics.median(ratios),
        "fraction_min": min(ratios),
        "fraction_max": max(ratios),
        "tokens_per_s": BATCH * MODEL["context"] / s,
    }


def trace(world: World, rounds: int = 12) -> dict[str, float]:
    """What the trace costs: the median over pairs of a step with it and one without."""
    trainer = trainer_of(world, microbatches=4)
    recorder = trainer.recorder
    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder), 0, 1, {}) as writer:

        def step(traced: bool) -> float:
            recorder.writer = writer if traced else None

            def whole() -> None:
                trainer.step()
                recorder.flush()

            return timed(whole)

        step(False)
        pairs = [(step(True), step(False)) if i % 2 else tuple(reversed((step(False), step(True)))) for i in range(rounds)]
        recorder.writer = None
        start = time.perf_counter_ns()
        calls = 20000
        for _ in range(calls):
            writer.record(1, start, start, 0, 0, 0)
        cost = (time.perf_counter_ns() - start) / calls
    return {
        "with_s": statistics.median(p[0] for p in pairs),
        "without_s": statistics.median(p[1] for p in pairs),
        "overhead": statistics.median(a / b for a, b in pairs) - 1,
        "record_ns": cost,
    }


def in_turn(world: World, solo: Synchronous, joint: Sequence[Synchronous], rounds: int) -> list[list[float]]:
    """Seconds of a step of rank 0 alone (0 on the others), then of all ranks for each of `joint`, one after the other, `rounds` times."""
    for trainer in (solo, *joint):
        trainer.step()
    found = []
    for _ in range(rounds):
        world.set_waiting("yield")  # while one rank is timed alone, the others leave it the machine
        world.barrier()
        row = [timed(solo.step) if world.rank == 0 else 0.0]
        world.barrier()
        world.set_waiting("auto")
        for trainer in joint:
            world.barrier()
            row.append(timed(trainer.step))
        found.append(row)
    return found


def scaling(world: World, alone: World, variants: Sequence[str] = ("auto", "mpi"), rounds: int = 7) -> dict[str, Any]:
    """Weak scaling: the step of rank 0 alone over that of all ranks in data parallelism, in turn; collective.

    A variant is an algorithm of plan.sync, or "thread": auto with a progress thread. The microbatches are small enough for the ranks'
    activations to lie side by side in the cache that they share: as fast alone, and less contention.
    """
    solo = trainer_of(alone, microbatches=MICROBATCHES)
    joint = [_variant(world, v) for v in variants]
    rows = in_turn(world, solo, [solo, *joint], rounds)
    for trainer in joint:
        if trainer.world.thread:
            trainer.world.thread.stop()
    if world.rank:
        return {}  # rank 0 has the times of the one that ran alone
    together = {v: [row[2 + i] for row in rows] for i, v in enumerate(variants)}
    ones, apart = [row[0] for row in rows], [row[1] for row in rows]
    return {
        "ranks": world.size,
        "microbatches": MICROBATCHES,
        "alone_s": statistics.median(ones),
        "apart_s": statistics.median(apart),
        "apart": _ratio(ones, apart),
        "variants": {
            v: {"together_s": statistics.median(t), "efficiency": _ratio(ones, t), "synchronisation": 1 / _ratio(apart, t) - 1}
            for v, t in together.items()
        },
    }


def _variant(world: World, name: str) -> Synchronous:
    if name != "thread":
        return trainer_of(world, dp=world.size, microbatches=MICROBATCHES, sync={"algorithm": name})
    own = World(world.comm.Dup(), wait="auto")  # whose thread serves this variant alone
    return trainer_of(own, dp=world.size, microbatches=MICROBATCHES, sync={"progress": "thread"})


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """The median of the ratios of figures taken in turn."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def pipeline(world: World, alone: World, microbatches: int = 8, rounds: int = 7) -> dict[str, float]:
    """A 1F1B pipeline over all ranks against rank 0 alone with the same microbatches, in turn; collective."""
    batch, p = 4 * microbatches, world.size
    solo = trainer_of(alone, batch=batch, microbatches=microbatches)
    joint = trainer_of(world, batch=batch, microbatches=microbatches, pp=p)
    pairs = in_turn(world, solo, [joint], rounds)
    if world.rank:
        return {}  # rank 0 has the times of the one that ran alone
    bound = (microbatches + p - 1) / (microbatches * p)
    return {
        "ranks": p,
        "microbatches": microbatches,
        "alone_s": statistics.median(a for a, _ in pairs),
        "together_s": statistics.median(b for _, b in pairs),
        "over_closed_form": statistics.median(b / (a * bound) for a, b in pairs) - 1,
    }
