"""What the microbatches in flight on a rank keep for their backwards, at the moment when that is most: arithmetic on its list of actions.

    actions of stage 0     0F0 0F1 0F2 0B0 0F3 0B1 ...        three microbatches in flight at most, from F to the end of I
    bytes of each          its blocks by item, and beside them what the embedding and the head keep

Beside it stands the closed form for the blocks, e s b h (4 + 12 / t) times blocks and microbatches (forms/activations.py), which is of
multi-head attention, an inner width of 4 h, and even cuts, without log-sum-exp and norm statistics. What W still needs after I, in
schedules that part the two, comes on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcpar.config import Config
from hpcpar.forms.activations import Shape, block_elements, items
from hpcpar.nn.describe import Layer
from hpcpar.schedule.action import Action, Kind


@dataclass
class InFlight:
    """`microbatches` by stage, bytes by item of all of them in the blocks and at the ends of the model, and those of the closed form."""

    microbatches: dict[int, int]
    formula: str
    blocks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    by_formula: float = 0.0

    def report(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "microbatches": {str(s): n for s, n in self.microbatches.items()},
            "blocks": dict(self.blocks),
            "ends": dict(self.ends),
            "formula": self.formula,
            "formula_bytes": self.by_formula,
            "total_bytes": self.blocks.total() + self.ends.total(),
        }


def in_flight(
    config: Config, stages: Mapping[int, Sequence[Layer]], actions: Iterable[Action], at: Mapping[str, int], size: int
) -> InFlight:
    """Of the rank at coordinates `at`, which holds `stages` and runs `actions`, in microbatches of `size` samples."""
    plan, model = config.plan, config.model
    shape = Shape.of(model, plan, config.train, size, at["tp"], at["cp"])
    each = {s: [(layer.kind, items(layer, shape)) for layer in layers] for s, layers in stages.items()}
    most = peak(actions, {s: sum(found.total() for _, found in layers) for s, layers in each.items()})
    found = InFlight(most, _formula(config))
    rows = size * model.context / plan.cp
    once = shape.itemsize * block_elements(rows, model.width, plan.tp, plan.sequence)
    if shape.recompute:
        once = shape.itemsize * rows * model.width / (plan.tp if plan.sequence else 1)
    for s, layers in each.items():
        for kind, kept in layers:
            into = found.blocks if kind == "block" else found.ends
            into.update({item: bytes_ * most[s] for item, bytes_ in kept.items()})
            found.by_formula += once * most[s] * (kind == "block")
    return found


def peak(actions: Iterable[Action], sizes: Mapping[int, int]) -> dict[int, int]:
    """The microbatches by stage at the first moment when those in flight, of `sizes` bytes by stage, keep most."""
    now, found, most = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 0), 0
    for a in actions:
        if a.kind is Kind.F:
            now[a.stage] += 1
            held = sum(n * sizes[s] for s, n in now.items())
            if held > most:
                most, found = held, dict(now)
        elif a.kind in (Kind.B, Kind.I):
            now[a.stage] -= 1
    return found


def _formula(config: Config) -> str:
    """The closed form of a block in letters."""
    plan = config.plan
    whole = "e·s·b·h" if plan.cp == 1 else f"e·(s/{plan.cp})·b·h"
    if plan.recompute == "full":
        return f"{whole}/{plan.tp}" if plan.sequence else whole
    return f"{whole}·16/{plan.tp}" if plan.sequence else f"{whole}·(4 + 12/{plan.tp})"
