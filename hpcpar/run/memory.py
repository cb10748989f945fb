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
from hpcpar.forms.memory import KINDS, POLICIES, formula, formula_bytes
from hpcpar.forms.tensor import cut_layer
from hpcpar.mesh import Mesh
from hpcpar.nn.describe import cut_stages
from hpcpar.nn.parameters import FlatMap
from hpcpar.optim import OPTIMIZERS
from hpcpar.parallel.zero import cut
from hpcpar.run import feasible
from hpcpar.run.activations import InFlight, in_flight
from hpcpar.run.program import program_of, replicas_of
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
    feasible.check_model(config.model)
    feasible.check_plan(plan, plan.ranks)
    feasible.check_sharing(config)
    size, program = feasible.microbatch_size(config), program_of(config)
    schedule = program.schedule
    mesh, lives = Mesh.of(plan), lifetimes(schedule)
    layers = cut_stages(config.model, plan.stages, schedule.stages)
    pieces = [[[cut_layer(x, config.model, plan.tp, t, plan.sequence) for x in stage] for stage in layers] for t in range(plan.tp)]
    maps = [[FlatMap(stage, plan.zero < 2) for stage in every] for every in pieces]
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
        mine_at = maps[at["tp"]]
        elements = sum(mine_at[s].size for s in stages)
        mine = Held(
            [rank],
            list(stages),
            elements,
            len(owners),
            formula(coefficients, plan.zero),
            formula_bytes(coefficients, plan.zero, elements, len(owners)),
            None if config.model.moe else in_flight(config, {s: layers[s] for s in stages}, program.ranks[at["pp"]], at, size),
        )
        for s in stages:
            _stage(config, mine_at[s], coefficients, once, alive["gradients"], len(owners), owners.index(rank), mine)
        alike = next((h for h in found if replace(h, ranks=[rank]) == mine), None)
        if alike:
            alike.ranks.append(rank)
        else:
            found.append(mine)
    return found


def _stage(
    config: Config, at: FlatMap, coefficients: dict[str, int], once: dict[str, int], open_: int, owners: int, owner: int, into: Held
) -> None:
    """Add what one stage holds on one of its owners."""
    zero, itemsize, tied = config.plan.zero, once["parameters"], config.model.tied
    second = (at.total - at.size) * once["gradients"]
    if not zero:
        for kind, c in coefficients.items():
            into.kinds[kind] += c * at.size
        into.add({"tied gradient": second * open_})
        return
    shards = cut.shards_of(at, zero, tied, config.plan.sync, itemsize, owners)
    for kind, c in coefficients.items():
        into.kinds[kind] += c * (shards.size(owner) if zero >= KINDS[kind] else at.size)
    into.add({"tied gradient": second * open_})
    if zero >= 2:
        into.add({"gradient buckets": cut.slots(high - low for low, high in shards.buckets) * once["gradients"]})
    if zero == 3:
        apart = cut.tied_span(at, tied)
        gathered = cut.slots(high - low for low, high in cut.units(at, tied))
        into.add({"gathered weights": gathered * itemsize, "tied weight": (apart[1] - apart[0]) * itemsize if apart else 0})
