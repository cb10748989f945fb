"""From a plan to this rank's part of it: schedule, lowered actions, stages, groups. Refusals come from here, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hpcpar.comm.world import Group, World
from hpcpar.config import Config
from hpcpar.mesh import Mesh
from hpcpar.nn.context import Frame
from hpcpar.nn.describe import cut_stages
from hpcpar.nn.stage import Stage
from hpcpar.optim import OPTIMIZERS
from hpcpar.parallel.compress import CODECS, Compressed
from hpcpar.run.offload import Offloaded
from hpcpar.run.part import Part
from hpcpar.run.sharded import Sharded
from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.lower import lower
from hpcpar.schedule.program import Program, Schedule


def forward_lists(schedule: Schedule, microbatches: int) -> Schedule:
    """Forwards alone, for evaluation: microbatch k on stage s at time k + s, on the first holder of every stage."""
    lists: list[tuple[Action, ...]] = []
    for rank in range(len(schedule.ranks)):
        mine = [s for s in schedule.stages_of(rank) if schedule.holders(s)[0] == rank]
        order = sorted((k + s, s, k) for s in mine for k in range(microbatches))
        lists.append(tuple(Action(Kind.F, s, k) for _, s, k in order))
    return Schedule("evaluate", schedule.stages, microbatches, schedule.chunks, tuple(lists), True)


@dataclass
class Pipeline:
    """This rank's place and actions: `rank` is its pipeline rank, `replica` its data-parallel one."""

    world: World
    mesh: Mesh
    program: Program
    rank: int
    replica: int
    parts: dict[int, Part] = field(default_factory=dict)
    norm_group: Group | None = None
    data_group: Group | None = None
    _forward: dict[int, tuple[Action, ...]] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The schedule without messages."""
        return self.program.schedule

    @property
    def actions(self) -> tuple[Action, ...]:
        """What this rank runs in a step."""
        return self.program.ranks[self.rank]

    @property
    def counts_losses(self) -> bool:
        """Whether this rank's losses are of held-out samples that no other rank counts."""
        return self.schedule.holders(self.schedule.stages - 1)[0] == self.rank

    def peer(self, pipeline_rank: int) -> int:
        """The MPI rank of a pipeline rank of this replica."""
        return self.mesh.rank(pp=pipeline_rank, dp=self.replica)

    @cached_property
    def final(self) -> dict[int, int]:
        """The last microbatch of a step whose weight gradient this rank makes, by stage."""
        out: dict[int, int] = {}
        for a in self.actions:
            if a.kind in (Kind.B, Kind.W) and a.microbatch is not None:
                out[a.stage] = max(a.microbatch, out.get(a.stage, -1))
        return out

    def tied_peer(self, part: Part) -> Part | int:
        """Who holds the other use of the tied weight: another part of this rank, or an MPI rank."""
        last = self.schedule.stages - 1
        other = self.schedule.tied_peer(self.rank, part.index)
        return self.parts[last if part.index == 0 else 0] if other == self.rank else self.peer(other)

    def forward_actions(self, microbatches: int) -> tuple[Action, ...]:
        """What this rank runs to forward held-out microbatches."""
        if microbatches not in self._forward:
            self._forward[microbatches] = lower(forward_lists(self.schedule, microbatches)).ranks[self.rank]
        return self._forward[microbatches]


def build(config: Config, world: World, program: Program, xp: Any) -> Pipeline:
    """Make this rank's parts and the communicators; collective. The weights are zeros until they are started or restored."""
    plan, train = config.plan, config.train
    mesh = Mesh.of(plan)
    at = mesh.coordinates(world.rank)
    rank, schedule = at["pp"], program.schedule
    pipeline = Pipeline(world, mesh, program, rank, at["dp"])
    stages = cut_stages(config.model, plan.stages, schedule.stages)
    replicas = {s: _replicas(mesh, schedule, s) for s in range(schedule.stages)}
    pipes = [mesh.group("pp", mesh.rank(dp=d)) for d in range(mesh.size("dp"))]
    data = [mesh.group("dp", mesh.rank(pp=r)) for r in range(mesh.size("pp"))]
    wanted: Iterable[tuple[str, tuple[int, ...]]] = [
        *(("dp", ranks) for ranks in (*replicas.values(), *data) if len(ranks) > 1 or plan.zero),
        *(("pp", ranks) for ranks in pipes if len(ranks) > 1),
    ]
    world.split(wanted)
    if mesh.size("pp") > 1:
        pipeline.norm_group = world.of("pp", pipes[at["dp"]])
    if plan.zero and world.size > 1:
        pipeline.norm_group = world  # every rank counts its shards
    if plan.dp > 1:
        pipeline.data_group = world.of("dp", data[rank])
    frame = Frame.of(config.model, train.seed, xp, train.precision)
    kind: Any = OPTIMIZERS[train.optimizer]
    rule = kind.of(train)
    kind_of_part = Offloaded if plan.offload else Part
    for s in schedule.stages_of(rank):
        stage, holders = Stage(stages[s], frame, plan.recompute), schedule.holders(s)
        if plan.zero:
            group = world.of("dp", replicas[s])
            part: Part = Sharded(stage, s, holders, rule, xp, train.precision, group, plan, config.model.tied)
        else:
            part = kind_of_part(stage, s, holders, rule, xp, train.precision)
            part.group = world.of("dp", replicas[s]) if len(replicas[s]) > 1 else None
        if part.group and schedule.synchronous and plan.sync.mode == "bsp":
            part.buckets = compressed(config, part, part.group) if plan.sync.compress != "none" else part.reducer(plan.sync)
            if len(holders) == 1:  # the two copies of a stage finish at different times: their sums start at D, in one order
                part.gradients.ready = part.buckets.ready
        pipeline.parts[s] = part
    return pipeline


def compressed(config: Config, part: Part, group: Group) -> Compressed:
    """The reducer of a part whose gradients are compressed; collective."""
    sync, flat = config.plan.sync, part.gradients.flat
    codec = CODECS[sync.compress].of(sync, part.map, flat, config.train.seed)
    part.beside["owed"] = codec.held_bytes()
    return Compressed(part.map, flat, group, part.index, sync.bucket_mb, sync.first_bucket_mb, codec)


def _replicas(mesh: Mesh, schedule: Schedule, stage: int) -> tuple[int, ...]:
    """The MPI ranks that hold a stage: copies in the lists and data-parallel replicas."""
    return tuple(sorted(mesh.rank(pp=h, dp=d) for h in schedule.holders(stage) for d in range(mesh.size("dp"))))
