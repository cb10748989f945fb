"""What the microbatches in flight on a rank keep for their backwards, at the moment when that is most: arithmetic on its list of actions.

    F ----- saved ----- I ---- held ---- W         B is I and W in one: nothing is held

    actions of stage 0     0F0 0F1 0F2 0B0 0F3 0B1 ...        three microbatches in flight at most
    bytes of each          its blocks by item, and beside them what the embedding and the head keep

Beside it stands the closed form for the blocks, e s b h (4 + 12 / t) times blocks and microbatches (forms/activations.py), which is of
multi-head attention, an inner width of 4 h, and even cuts, without log-sum-exp and norm statistics. It is of what is saved; what is held
for W comes on top, item by item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcpar.config import Config
from hpcpar.forms.activations import Shape, block_elements, held_items, items
from hpcpar.nn.describe import Layer
from hpcpar.schedule.action import Action, Kind


@dataclass
class InFlight:
    """Microbatches by stage from F to I and from I to W, bytes by item of the former in the blocks and at the ends of the model, of the
    latter everywhere, and those of the closed form."""

    microbatches: dict[int, int]
    waiting: dict[int, int]
    formula: str
    blocks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    by_formula: float = 0.0

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return self.blocks.total() + self.ends.total() + self.held.total()

    def report(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "microbatches": {str(s): n for s, n in self.microbatches.items()},
            "waiting_for_w": {str(s): n for s, n in self.waiting.items()},
            "blocks": dict(self.blocks),
            "ends": dict(self.ends),
            "held": dict(self.held),
            "formula": self.formula,
            "formula_bytes": self.by_formula,
            "total_bytes": self.total,
        }


def in_flight(
    config: Config, stages: Mapping[int, Sequence[Layer]], actions: Iterable[Action], at: Mapping[str, int], size: int
) -> InFlight:
    """Of the rank at coordinates `at`, which holds `stages` and runs `actions`, in microbatches of `size` samples."""
    plan, model = config.plan, config.model
    shape = Shape.of(model, plan, config.train, size, at["tp"], at["cp"])
    saved = {s: [(layer.kind, items(layer, shape)) for layer in layers] for s, layers in stages.items()}
    held = {s: sum((held_items(layer, shape) for layer in layers), Counter()) for s, layers in stages.items()}
    sizes = {s: sum(found.total() for _, found in layers) for s, layers in saved.items()}
    found = InFlight(*peak(actions, sizes, {s: h.total() for s, h in held.items()}), _formula(config))
    rows = size * model.context / plan.cp
    once = shape.itemsize * block_elements(rows, model.width, plan.tp, plan.sequence)
    if shape.recompute:
        once = shape.itemsize * rows * model.width / (plan.tp if plan.sequence else 1)
    for s, layers in saved.items():
        n = found.microbatches[s]
        for kind, kept in layers:
            into = found.blocks if kind == "block" else found.ends
            into.update({item: bytes_ * n for item, bytes_ in kept.items()})
            found.by_formula += once * n * (kind == "block")
        if found.waiting[s]:
            found.held.update({item: bytes_ * found.waiting[s] for item, bytes_ in held[s].items()})
    return found


def peak(actions: Iterable[Action], saved: Mapping[int, int], held: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """The microbatches by stage from F to I, of `saved` bytes each, and from I to W, of `held` bytes, when they first keep most."""
    flying, waiting = dict.fromkeys(saved, 0), dict.fromkeys(saved, 0)
    found, most = (dict(flying), dict(waiting)), 0
    for a in actions:
        if a.kind is Kind.F:
            flying[a.stage] += 1
        elif a.kind in (Kind.B, Kind.I):
            flying[a.stage] -= 1
            waiting[a.stage] += a.kind is Kind.I
        elif a.kind is Kind.W:
            waiting[a.stage] -= 1
        now = sum(flying[s] * saved[s] + waiting[s] * held[s] for s in saved)
        if now > most:
            found, most = (dict(flying), dict(waiting)), now
    return found


def _formula(config: Config) -> str:
    """The closed form of a block in letters."""
    plan = config.plan
    whole = "e·s·b·h" if plan.cp == 1 else f"e·(s/{plan.cp})·b·h"
    if plan.recompute == "full":
        return f"{whole}/{plan.tp}" if plan.sequence else whole
    return f"{whole}·16/{plan.tp}" if plan.sequence else f"{whole}·(4 + 12/{plan.tp})"
