"""From a plan to this rank's part of it: schedule, lowered actions, stages, groups. Refusals come from here, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hpcpar.comm.world import Group, World
from hpcpar.config import Config
from hpcpar.forms import tensor
from hpcpar.forms.expert import cut_layer
from hpcpar.mesh import Mesh
from hpcpar.nn.context import Frame
from hpcpar.nn.describe import cut_stages
from hpcpar.nn.stage import Stage
from hpcpar.optim import OPTIMIZERS
from hpcpar.parallel import context
from hpcpar.parallel.compress import CODECS, Compressed
from hpcpar.parallel.expert import Exchange
from hpcpar.parallel.routing import share
from hpcpar.parallel.shared import Shared, spans_of
from hpcpar.parallel.tensor import cut_frame
from hpcpar.run import expert
from hpcpar.run.offload import Offloaded
from hpcpar.run.part import Part
from hpcpar.run.program import replicas_of
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
    """This rank's place and actions: `rank` is its pipeline rank, `replica` its data-parallel one, `at` all its coordinates."""

    world: World
    mesh: Mesh
    program: Program
    rank: int
    replica: int
    frame: Frame
    at: dict[str, int] = field(default_factory=dict)
    parts: dict[int, Part] = field(default_factory=dict)
    norm_group: Group | None = None
    data_group: Group | None = None
    tensor_group: Group | None = None  # the ranks that cut each layer
    context_group: Group | None = None  # the ranks that cut each sample
    place: tuple[int, int] = (0, 1)  # which piece of the experts is here, and of how many
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
        return self.schedule.holders(self.schedule.stages - 1)[0] == self.rank and self.leads

    @property
    def leads(self) -> bool:
        """Whether this rank counts what all ranks that cut its layers hold: losses and numbers of labels."""
        return self.at["tp"] == 0

    def peer(self, pipeline_rank: int) -> int:
        """The MPI rank of a pipeline rank of this replica."""
        return self.mesh.rank(**{**self.at, "pp": pipeline_rank})

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
    stages = cut_stages(config.model, plan.stages, schedule.stages)
    everyone = range(world.size)
    replicas = {(s, t): replicas_of(mesh, schedule, s, t) for s in range(schedule.stages) for t in range(mesh.size("tp"))}
    kinds = {"pp": ("pp", "tp"), "dp": ("dp", "cp"), "cp": ("cp",), "tp": ("tp",)}  # who sums norms, gradients, softmax, layers
    groups = {axis: {mesh.group(along, r) for r in everyone} for axis, along in kinds.items()}
    groups["dp"] |= set(replicas.values())
    sharers = {i: tensor.heads_of(config.model, plan.tp, i)[2] for i in range(plan.tp)}  # who holds the same key/value heads
    groups["tp"] |= {tuple(g[i] for i in some) for g in groups["tp"] for some in sharers.values()}
    groups["tp"] |= {_of_all(replicas, s, some) for s in range(schedule.stages) for some in sharers.values() if len(some) > 1}
    for axis, more in expert.groups(mesh, schedule, plan).items():
        groups[axis] = groups.get(axis, set()) | more
    wanted: Iterable[tuple[str, tuple[int, ...]]] = [
        (axis, g) for axis, every in groups.items() for g in every if len(g) > 1 or (plan.zero and axis in ("dp", "expert_dp"))
    ]
    world.split(wanted)
    cp = world.of("cp", mesh.group("cp", world.rank)) if plan.cp > 1 else None
    frame = context.frame(config, cp, xp)
    ep, place = plan.ep, expert.place_of(mesh, plan.ep, world.rank)
    if ep > 1:
        frame = replace(frame, dispatch=Exchange(world.of("ep", expert.exchange_of(mesh, ep, world.rank)), plan.experts))
    pipeline = Pipeline(world, mesh, program, rank, at["dp"], frame, at, context_group=cp, place=place)

    def mine(axis: str) -> Group | None:
        ranks = mesh.group(kinds[axis], world.rank)
        return world.of(axis, ranks) if len(ranks) > 1 else None

    pipeline.data_group, pipeline.tensor_group = mine("dp"), mine("tp")
    all_pieces = expert.norm_of(mesh, ep, world.rank)
    pipeline.norm_group = world.of("pp", all_pieces) if len(all_pieces) > 1 else None
    if plan.zero and world.size > 1:
        pipeline.norm_group = world  # with shards every rank counts its own
    frame = cut_frame(frame, pipeline.tensor_group, plan.sequence)
    if config.model.moe:
        frame = share(frame, cp, pipeline.tensor_group, plan.context)
    pipeline.frame = frame
    kind: Any = OPTIMIZERS[train.optimizer]
    rule = kind.of(train)
    kind_of_part = Offloaded if plan.offload else Part
    for s in schedule.stages_of(rank):
        layers = [tensor.cut_layer(layer, config.model, plan.tp, at["tp"], plan.sequence) for layer in stages[s]]
        layers = [cut_layer(layer, ep, place[0]) for layer in layers]
        stage, holders, copies = Stage(layers, frame, plan.recompute, plan.zero < 2), schedule.holders(s), replicas[s, at["tp"]]
        same = expert.holders_of(mesh, schedule, s, ep, world.rank)
        same_group = world.of("expert_dp", same) if ep > 1 and (len(same) > 1 or plan.zero) else None
        if plan.zero:
            group = world.of("dp", copies)
            part: Part = Sharded(stage, s, holders, rule, xp, train.precision, group, plan, config.model.tied, same_group)
        else:
            part = kind_of_part(stage, s, holders, rule, xp, train.precision)
            part.group = world.of("dp", copies) if len(copies) > 1 else None
            part.place, part.expert_group = place, same_group
        if part.group and schedule.synchronous and plan.sync.mode == "bsp":
            part.buckets = compressed(config, part, part.group) if plan.sync.compress != "none" else part.reducer(plan.sync)
            if len(holders) == 1:  # the two copies of a stage finish at different times: their sums start at D, in one order
                part.gradients.ready = part.buckets.ready
        if pipeline.tensor_group:
            part.shared = shared(part, pipeline, replicas)
            if part.shared:
                part.shared.onward, part.gradients.ready = part.gradients.ready, part.shared.ready
        pipeline.parts[s] = part
    return pipeline


def shared(part: Part, pipeline: Pipeline, replicas: Mapping[tuple[int, int], tuple[int, ...]]) -> Shared | None:
    """What sums the gradients of a part that ranks along tp make together, if there are any; `replicas` hold each (stage, piece)."""
    spans, world, s, along = spans_of(part.map), pipeline.world, part.index, pipeline.tensor_group
    if not spans or along is None:
        return None
    apart = any(start >= part.map.border for of in spans.values() for start, _ in of)  # key/value heads
    copies = replicas[s, pipeline.at["tp"]]
    if apart and part.buckets and len(copies) > 2 and len(part.holders) == 1:
        of_all = {some: world.of("tp", _of_all(replicas, s, some)) for some in spans}
        return Shared(part.map, part.gradients.flat, of_all, s, world.rank != copies[0])
    return Shared(part.map, part.gradients.flat, {some: world.of("tp", [along.ranks[i] for i in some]) for some in spans}, s)


def _of_all(replicas: Mapping[tuple[int, int], tuple[int, ...]], stage: int, some: Iterable[int]) -> tuple[int, ...]:
    """The MPI ranks that hold pieces `some` of a stage, of all replicas."""
    return tuple(sorted(r for t in some for r in replicas[stage, t]))


def compressed(config: Config, part: Part, group: Group) -> Compressed:
    """The reducer of a part whose gradients are compressed; collective."""
    sync, flat = config.plan.sync, part.gradients.flat
    codec = CODECS[sync.compress].of(sync, part.map, flat, config.train.seed)
    part.beside["owed"] = codec.held_bytes()
    return Compressed(part.map, flat, group, part.index, sync.bucket_mb, sync.first_bucket_mb, codec)
