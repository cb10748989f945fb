"""What every rank of a described run will hold, by kind, beside the formula: arithmetic alone, no MPI and no arrays.

    parameters  gradients  optimizer        the kinds of the formula (forms/memory.py), as arrays are really cut
    buffers     tied gradient               the head's use of a tied weight, which the embedding's stage adds at the end
                gradient buckets            zero 2, 3: two buckets, one being filled and one on its way
                gathered weights            zero 3: two layers, one that computes and one that arrives
                tied weight                 zero 3: kept from its first use of a pass to the last

    stash                       what microbatches in flight leave for their backwards (run/activations.py)

The memory samples of the trace have the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hpcpar.config import Config
from hpcpar.forms.expert import cut_layer as cut_experts
from hpcpar.forms.memory import KINDS, POLICIES, formula, formula_bytes
from hpcpar.forms.tensor import cut_layer
from hpcpar.mesh import Mesh
from hpcpar.nn.describe import Layer, cut_stages
from hpcpar.nn.parameters import FlatMap
from hpcpar.optim import OPTIMIZERS
from hpcpar.parallel.zero import cut
from hpcpar.run.activations import InFlight, in_flight
from hpcpar.run.expert import holders_of, place_of
from hpcpar.run.program import checked, replicas_of
from hpcpar.schedule.lifetimes import lifetimes


@dataclass
class Held:
    """What some ranks hold alike: bytes by kind as allocated and by the formula, and the named buffers beside it."""

    ranks: list[int]
    stages: list[int]
    elements: int  # Psi: the parameters of its stages
    owners: int  # N: the ranks that share them
    formula: str
    by_formula: dict[str, float]
    activations: InFlight | None  # None with experts: what their blocks keep is known by the routing alone
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    buffers: dict[str, int] = field(default_factory=dict)

    def add(self, buffers: dict[str, int]) -> None:
        """Count named buffers."""
        for name, size in buffers.items():
            if size:
                self.buffers[name] = self.buffers.get(name, 0) + size

    def report(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "ranks": self.ranks,
            "stages": self.stages,
            "parameters": self.elements,
            "replicas": self.owners,
            "bytes": self.kinds,
            "formula": self.formula,
            "formula_bytes": self.by_formula,
            "buffers": self.buffers,
            "total_bytes": sum(self.kinds.values()) + sum(self.buffers.values()),
            "activations": self.activations.report() if self.activations else None,
        }


def held(config: Config) -> list[Held]:
    """What the ranks of a run hold, ranks that hold the same together; raises PlanError where the run could not be."""
    plan = config.plan
    program, size = checked(config, plan.ranks)
    schedule = program.schedule
    mesh, lives = Mesh.of(plan), lifetimes(schedule)
    layers = cut_stages(config.model, plan.stages, schedule.stages)
    every = [(t, e) for t in range(plan.tp) for e in range(plan.ep)]
    maps = {at: [FlatMap([_here(x, config, *at) for x in stage], plan.zero < 2) for stage in layers] for at in every}
    kind: Any = OPTIMIZERS[config.train.optimizer]
    states = len(kind.names)
    found: list[Held] = []
    for rank in range(mesh.ranks):
        at = mesh.coordinates(rank)
        life, stages = lives[at["pp"]], schedule.stages_of(at["pp"])
        once = POLICIES[config.train.precision].coefficients(states)
        alive = {"parameters": life.weight_versions, "gradients": max(1, life.gradient_buffers), "optimizer": 1}
        coefficients = {kind: c * alive[kind] for kind, c in once.items()}
        owners = replicas_of(mesh, schedule, stages[0], at["tp"])
        mine_at = maps[at["tp"], place_of(mesh, plan.ep, rank)[0]]
        elements = sum(mine_at[s].size for s in stages)
        apart = elements - sum(mine_at[s].common for s in stages)  # of experts, which fewer ranks share
        n = len(holders_of(mesh, schedule, stages[0], plan.ep, rank))
        parts = [formula_bytes(coefficients, plan.zero, *of) for of in ((elements - apart, len(owners)), (apart, n))]
        mine = Held(
            [rank],
            list(stages),
            elements,
            len(owners),
            formula(coefficients, plan.zero) + f", N = {n} of the Ψ = {apart:,} of experts" * (apart > 0 and plan.zero > 0),
            {kind: sum(part[kind] for part in parts) for kind in parts[0]},
            None if config.model.moe else in_flight(config, {s: layers[s] for s in stages}, program.ranks[at["pp"]], at, size),
        )
        for s in stages:
            same = holders_of(mesh, schedule, s, plan.ep, rank)
            _stage(config, mine_at[s], coefficients, once, alive["gradients"], [(len(g), g.index(rank)) for g in (owners, same)], mine)
        alike = next((h for h in found if replace(h, ranks=[rank]) == mine), None)
        if alike:
            alike.ranks.append(rank)
        else:
            found.append(mine)
    return found


def _here(layer: Layer, config: Config, t: int, e: int) -> Layer:
    """A layer with what is held of it at place t along tp and by place e of those that exchange rows."""
    plan = config.plan
    return cut_experts(cut_layer(layer, config.model, plan.tp, t, plan.sequence), plan.ep, e)


def _stage(
    config: Config,
    at: FlatMap,
    coefficients: dict[str, int],
    once: dict[str, int],
    open_: int,
    owners: list[tuple[int, int]],
    into: Held,
) -> None:
    """Add what one stage holds on one of its owners; `owners` are their number and its place: of the stage, and of the experts here."""
    zero, itemsize, tied = config.plan.zero, once["parameters"], config.model.tied
    second = (at.total - at.size) * once["gradients"]
    if not zero:
        for kind, c in coefficients.items():
            into.kinds[kind] += c * at.size
        into.add({"tied gradient": second * open_})
        return
    every = [
        (cut.shards_of(at, zero, tied, config.plan.sync, itemsize, n, within), owner)
        for (within, n), (_, owner) in zip(cut.ranges(at, *(n for n, _ in owners)), owners, strict=False)
    ]
    shards = every[0][0]
    for kind, c in coefficients.items():
        into.kinds[kind] += c * (sum(of.size(owner) for of, owner in every) if zero >= KINDS[kind] else at.size)
    into.add({"tied gradient": second * open_})
    if zero >= 2:
        into.add({"gradient buckets": cut.slots(high - low for low, high in shards.buckets) * once["gradients"]})
    if zero == 3:
        apart = cut.tied_span(at, tied)
        gathered = cut.slots(high - low for low, high in cut.units(at, tied))
        into.add({"gathered weights": gathered * itemsize, "tied weight": (apart[1] - apart[0]) * itemsize if apart else 0})
