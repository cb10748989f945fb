"""Offload in a run: refused or planned before step 1, then stages, weights and optimizer state are put behind the traffic of their rank.

    plan.offload = {parameters = true, optimizer = true, activations = true, device_mb = 64}

                  device                                     host
    parameters    units in use or about to be                the flat weights: initial values, checkpoints
    optimizer     the unit that is updated                   the flat state
    activations   what the next backwards need               the rest
    always        gradients, tokens, what a layer makes      -
                  beside: borders, temporaries

device_mb is in units of 10^6 bytes. Kinds that are not offloaded stay on the device and count. Not counted: what lives inside one
operation, messages between ranks, rotary tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.comm.device import Pinned
from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.forms.accesses import Buffer, Iteration, forward, iteration
from hpcpar.forms.activations import Shape
from hpcpar.forms.offload import Demand, Placement, place, working_set
from hpcpar.mesh import Mesh
from hpcpar.nn.describe import Layer, cut_stages
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.stage import Stage
from hpcpar.optim import OPTIMIZERS, Segment, within
from hpcpar.parallel.offload.copies import copies_for
from hpcpar.parallel.offload.stage import Paged, unit_spans
from hpcpar.parallel.offload.traffic import Block, Traffic
from hpcpar.run.part import Part
from hpcpar.run.recorder import Recorder
from hpcpar.schedule.action import Kind
from hpcpar.schedule.program import Program

if TYPE_CHECKING:
    from hpcpar.run.build import Pipeline

SETTINGS = {"parameters": "weights", "optimizer": "optimizer", "activations": "saved"}  # the buffers of each setting


@dataclass(frozen=True)
class Placements:
    """What moves when on one rank: in a training step, and in one forward for evaluation of each of its stages."""

    step: Placement
    passes: Mapping[int, Placement]

    def __str__(self) -> str:
        s = self.step
        return (
            f"offload: {s.peak / 1e6:.3g} of {s.limit / 1e6:.3g} MB of the device, at least {s.working_set / 1e6:.3g}; "
            f"a step moves {s.moved_bytes('in') / 1e6:.3g} MB there and {s.moved_bytes('out') / 1e6:.3g} MB back"
        )


def placements(config: Config, program: Program, samples: int, rank: int) -> Placements | None:
    """The placements of MPI rank `rank`, None without plan.offload; raises PlanError where the limit or the schedule cannot be.

    `samples` is the size of a microbatch.
    """
    plan, train = config.plan, config.train
    if plan.offload is None:
        return None
    _check_schedule(program, plan.schedule)
    at = Mesh.of(plan).coordinates(rank)["pp"]
    cut = cut_stages(config.model, plan.stages, program.schedule.stages)
    stages = {s: cut[s] for s in program.schedule.stages_of(at)}
    shape = Shape(config.model, samples, np.dtype(train.precision).itemsize, plan.recompute == "full")
    rule: Any = OPTIMIZERS[train.optimizer]
    found = iteration(stages, program.ranks[at], shape, len(rule.names), plan.microbatches * plan.accumulate)
    movable = frozenset(kind for key, kind in SETTINGS.items() if getattr(plan.offload, key))
    limit = int(plan.offload.device_mb * 1e6)
    need = working_set(found, movable)
    if limit < need.bytes:
        raise PlanError(_refusal(config, stages, found, need))
    step = place(found, movable, limit)
    passes = {}
    for s, layers in stages.items():
        once = Iteration(tuple(forward(layers, s, -1, shape, False)), found.sizes, found.fixed)
        passes[s] = place(once, movable, limit, step.home)
    return Placements(step, passes)


def _check_schedule(program: Program, name: str) -> None:
    schedule = program.schedule
    if not schedule.synchronous:
        raise PlanError(f'plan.offload with plan.schedule = "{name}", which keeps versions of the weights; use a schedule with flushes')
    if any(a.kind in (Kind.I, Kind.W) for actions in program.ranks for a in actions):
        raise PlanError(
            f'plan.offload with plan.schedule = "{name}", which holds what W needs after I; use naive, gpipe, 1f1b or interleaved'
        )
    if any(len(schedule.holders(s)) > 1 for s in range(schedule.stages)):
        raise PlanError(f'plan.offload with plan.schedule = "{name}", which has two copies of a stage; use one with one copy')


def _refusal(config: Config, stages: Mapping[int, tuple[Layer, ...]], it: Iteration, need: Demand) -> str:
    """Both numbers, what they are made of, and what to change."""
    offload = config.plan.offload
    assert offload is not None
    parts = ", ".join(f"{name} {size / 1e6:.3g}" for name, size in need.parts.items() if size)
    enough = ceil(need.bytes / 1e4) / 100
    where = "what stays there"
    if need.access >= 0:
        a = it.accesses[need.access]
        what = {"F": "forward", "B": "backward", "U": "update"}[a.kind]
        layer = f"unit {a.index}" if a.kind == "U" else stages[a.stage][a.index].name
        where = f"the {what} of {layer} of stage {a.stage}"
    more = [f"plan.offload.{key} = true" for key in SETTINGS if not getattr(offload, key)]
    remedies = [f"device_mb >= {enough:g}", *more, "smaller microbatches"]
    return (
        f"plan.offload.device_mb = {offload.device_mb:g}, but {where} needs {need.bytes / 1e6:.4g} MB on the device ({parts}); "
        f"use {', '.join(remedies[:-1])} or {remedies[-1]}"
    )


class Offloaded(Part):
    """A part whose weights and optimizer state are at home on the host."""

    def __init__(self, stage: Stage, index: int, holders: tuple[int, ...], rule: Any, xp: Any, dtype: str):
        super().__init__(stage, index, holders, rule, xp, dtype)
        self.units = unit_spans(self.map)
        self.traffic: Traffic | None = None

    def _allocate(self, home: Any = None) -> None:
        super()._allocate(np if self.xp is np else Pinned)

    def blocks(self) -> dict[Buffer, Block]:
        """Weights and optimizer state by unit, on the host."""
        out = {}
        for u, (start, stop) in enumerate(self.units):
            out[Buffer("weights", self.index, u)] = Block([self._flat[self.newest][start:stop]])
            out[Buffer("optimizer", self.index, u)] = Block([flat[start:stop] for flat in self.state.values()])
        return out

    def put(self, view: Any, values: Any) -> None:
        """Copy host values into a view of an array on the host."""
        view[...] = np.asarray(values).reshape(view.shape)

    def weights_by_name(self) -> dict[str, Any]:
        """Views of the newest weights on the host, and the device is left."""
        self._come_home()
        return super().weights_by_name()

    def state_by_name(self) -> dict[str, dict[str, Any]]:
        """Views of the optimizer state on the host, and the device is left."""
        self._come_home()
        return super().state_by_name()

    def _come_home(self) -> None:
        if self.traffic:
            self.traffic.bring_home()

    def advance(self, version: int, needed: bool, gradients: Gradients, rate: float, scale: float | None) -> None:
        """Part.advance, unit by unit; a skipped update makes its accesses too, so that every step is the planned one."""
        super().advance(version, needed, gradients, rate, None)
        assert self.traffic is not None
        self.applied += scale is not None
        segments = [Segment(*s) for s in self.map.segments()]
        for u, (start, stop) in enumerate(self.units):
            self.traffic.begin("U", self.index, u)
            if scale is not None:
                (w,) = self.traffic.arrays(Buffer("weights", self.index, u))
                state = dict(zip(self.state, self.traffic.arrays(Buffer("optimizer", self.index, u)), strict=True))
                g = gradients.flat[start:stop]
                self.rule.step(w, g, state, within(segments, start, stop), self.applied, rate, scale)
                del w, state
            self.traffic.end()


def attach(pipeline: Pipeline, plans: Placements, recorder: Recorder, xp: Any) -> Traffic:
    """Put the parts of this rank behind one traffic; their weights and state are on the host until the first access."""
    world, parts = pipeline.world, [p for p in pipeline.parts.values() if isinstance(p, Offloaded)]
    held = sum(p.gradients.flat.nbytes for p in parts)
    if held > plans.step.fixed:
        raise RuntimeError(f"the gradients hold {held} bytes, planned were {plans.step.fixed} with the tokens")
    traffic = Traffic(
        plans.step,
        plans.passes,
        {b: block for p in parts for b, block in p.blocks().items()},
        copies_for(xp),
        xp.empty,
        (np if xp is np else Pinned).empty,
        lambda: world.record,
        world.waiter,
        lambda most: recorder.memory("device", most),
    )
    for p in parts:
        p.traffic = traffic
        p.stage = Paged(p.stage, p.index, traffic, lambda: recorder.action.microbatch)  # type: ignore[assignment]
    return traffic
