"""Times of a program: when each action of each rank starts and ends.

The order on a rank is fixed. A compute action starts at max(end of the one before it on its rank, arrival of its input); a message is
pure latency and occupies no rank; B gives its input gradient at its end. The semantics reproduce Table 5 of Qi et al. 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hpcpar.errors import PlanError
from hpcpar.schedule.action import COMPUTE, Action, Kind
from hpcpar.schedule.engine import Durations, run
from hpcpar.schedule.program import Program

Time = float | Sequence[float]


@dataclass(frozen=True)
class Times:
    """Seconds (or any unit) of one microbatch.

    F, I, W   a number: a whole rank's share, of which each of v chunks takes 1/v; a sequence: one for each stage, as it is
    comm      latency of a message; U, D: of an update and of a reduction, for one stage
    slow      factors of F, I and W by rank
    """

    F: Time = 1.0
    I: Time = 1.0
    W: Time = 1.0
    comm: float = 0.0
    U: float = 0.0
    D: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)

    def by_stage(self, kind: str, stages: int, chunks: int) -> list[float]:
        """The time of F, I or W on each stage; raises PlanError for a sequence of another length."""
        time = getattr(self, kind)
        if isinstance(time, int | float):
            return [time / chunks] * stages
        if len(time) != stages:
            raise PlanError(f"times of {kind} has {len(time)} entries for {stages} stages; give one a stage")
        return list(time)


@dataclass(frozen=True)
class Timing:
    """Start and end of every action of every rank, in the order of the program's lists; messages take no time of their rank."""

    program: Program
    start: list[list[float]]
    end: list[list[float]]
    times: Times

    @cached_property
    def spans(self) -> list[tuple[float, float]]:
        """(first start, last end) of each rank's actions that take time."""
        out = []
        for a, b in zip(self.start, self.end, strict=True):
            busy = [i for i in range(len(a)) if b[i] > a[i]]
            out.append((a[busy[0]], b[busy[-1]]) if busy else (0.0, 0.0))
        return out

    @cached_property
    def makespan(self) -> float:
        """From the first start to the last end of all ranks."""
        return max(b for _, b in self.spans) - min(a for a, _ in self.spans)

    @cached_property
    def cost(self) -> float:
        """The longest span of one rank."""
        return max(b - a for a, b in self.spans)

    @cached_property
    def works(self) -> list[float]:
        """The sum of F, I and W of each rank."""
        d = durations(self.program, self.times)
        every = {Kind.F: d.F, Kind.I: d.I, Kind.W: d.W, Kind.B: d.B}
        return [
            sum(every[a.kind][a.stage] for a in actions if a.kind in COMPUTE) * d.slow.get(rank, 1.0)
            for rank, actions in enumerate(self.program.schedule.ranks)
        ]

    @property
    def work(self) -> float:
        """The largest sum of F, I and W of one rank."""
        return max(self.works)

    @property
    def bubble_total(self) -> float:
        """Idle share of the whole: (cost - work) / cost (GPipe's and the zero-bubble papers' convention)."""
        return (self.cost - self.work) / self.cost if self.cost else 0.0

    @property
    def bubble_ideal(self) -> float:
        """Idle time over the ideal: (cost - work) / work (Megatron's convention)."""
        return (self.cost - self.work) / self.work if self.work else 0.0

    def compute(self, rank: int) -> list[tuple[Action, float, float]]:
        """(action, start, end) of a rank's compute actions and updates."""
        wanted = COMPUTE | {Kind.U}
        rows = zip(self.program.ranks[rank], self.start[rank], self.end[rank], strict=True)
        return [(a, s, e) for a, s, e in rows if a.kind in wanted]


def durations(program: Program, times: Times) -> Durations:
    """The times of each stage of a program."""
    stages, chunks = program.schedule.stages, program.schedule.chunks
    F, I, W = (times.by_stage(kind, stages, chunks) for kind in "FIW")
    return Durations(F, I, W, [i + w for i, w in zip(I, W, strict=True)], times.comm, times.U, times.D, times.slow)


def clock(program: Program, times: Times | None = None) -> Timing:
    """When each action starts and ends; raises PlanError with the grid if the program waits for itself."""
    times = times or Times()
    start, end = run(program, durations(program, times))
    return Timing(program, start, end, times)
