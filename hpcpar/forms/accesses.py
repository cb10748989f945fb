"""The dry iteration of offloading: which buffers a step of one rank reads, makes and writes, in order, from its list of actions.

    action   accesses
    0F3      F embedding, F blocks.0, ..., each: weights read, saved activations of (layer, 3) made
    0B3      B head, ..., B embedding, each: weights read, saved activations of (layer, 3) read, and free after it
    0U       U of each unit of the weights: weights and optimizer state read and written

Cui et al. 2016, "GeePS", section 3.3: a virtual iteration gathers the access pattern, which is the same in every real one. A unit is what
moves as one: the parameters of a layer, and a weight that two layers of the stage share apart from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hpcpar.forms.activations import Shape, backward_bytes, forward_bytes, saved_bytes
from hpcpar.nn.describe import Layer
from hpcpar.schedule.action import Action, Kind

Pass = Literal["F", "B", "U"]


class Buffer(NamedTuple):
    """Weights or optimizer state of a unit of a stage, or what a layer saved of a microbatch."""

    kind: Literal["weights", "optimizer", "saved"]
    stage: int
    item: int  # which unit, or which layer
    microbatch: int = -1


@dataclass(frozen=True)
class Access:
    """One layer's forward or backward of a microbatch, or one unit's update, and its buffers.

    `frees` are not needed after it. `beside` is the bytes that live during this access alone; `carried` of them, the output of a forward
    or the gradient of a backward's input, are still there when the next access of the same pass begins.
    """

    kind: Pass
    stage: int
    index: int  # of the layer, or of the unit
    microbatch: int = -1
    uses: tuple[Buffer, ...] = ()
    makes: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    frees: tuple[Buffer, ...] = ()
    beside: int = 0
    carried: int = 0


class Unit(NamedTuple):
    """Parameters that lie side by side and move as one: their names, elements and the layers that read them."""

    names: tuple[str, ...]
    size: int
    layers: tuple[int, ...]


def units(layers: Sequence[Layer]) -> tuple[Unit, ...]:
    """The units of a stage, in the order in which they lie in its flat arrays."""
    users: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        for p in layer.parameters:
            users.setdefault(p.name, []).append(i)
    found: list[Unit] = []
    for i, layer in enumerate(layers):
        for p in layer.parameters:
            if users[p.name][0] != i:
                continue
            read = tuple(users[p.name])
            if found and found[-1].layers == read == (i,):
                found[-1] = Unit((*found[-1].names, p.name), found[-1].size + p.size, read)
            else:
                found.append(Unit((p.name,), p.size, read))
    return tuple(found)


@dataclass(frozen=True)
class Iteration:
    """The accesses of a step and the bytes of every buffer; `fixed` is what is on the device throughout, by kind."""

    accesses: tuple[Access, ...]
    sizes: Mapping[Buffer, int]
    fixed: Mapping[str, int]


def iteration(stages: Mapping[int, Sequence[Layer]], actions: Iterable[Action], at: Shape, states: int, microbatches: int) -> Iteration:
    """The dry iteration of a rank that holds `stages` ({stage: layers}).

    `states` is the number of values that the optimizer keeps for an element. The gradients of the step stay on the device, whole, because
    buckets of them are summed while the backward goes on; so do the tokens of its `microbatches`.
    """
    sizes: dict[Buffer, int] = {}
    gradients = 0
    for s, layers in stages.items():
        for u, unit in enumerate(units(layers)):
            sizes[Buffer("weights", s, u)] = unit.size * at.itemsize
            sizes[Buffer("optimizer", s, u)] = unit.size * at.itemsize * states
            gradients += unit.size * at.itemsize * len(unit.layers)  # each use of a shared weight has its own
    found: list[Access] = []
    for a in actions:
        if a.kind is Kind.F:
            found += forward(stages[a.stage], a.stage, a.microbatch or 0, at, True)
        elif a.kind is Kind.B:
            found += backward(stages[a.stage], a.stage, a.microbatch or 0, at)
        elif a.kind is Kind.U:
            found += _update(stages[a.stage], a.stage)
    for access in found:
        for b in access.makes:
            sizes[b] = saved_bytes(stages[b.stage][b.item], at)
    return Iteration(tuple(found), sizes, {"gradients": gradients, "tokens": microbatches * at.token_bytes})


def forward(layers: Sequence[Layer], stage: int, microbatch: int, at: Shape, training: bool) -> list[Access]:
    """The accesses of one forward; where it is no `training`, what a layer makes for its backward is gone after it."""
    out = []
    for i, layer in enumerate(layers):
        carried = 0 if i == len(layers) - 1 else at.border_bytes
        beside = forward_bytes(layer, at) + at.border_bytes * (layer.kind != "head")
        makes = (Buffer("saved", stage, i, microbatch),) if training else ()
        if not training:
            beside += saved_bytes(layer, at)
        out.append(Access("F", stage, i, microbatch, _weights(layers, stage, i), makes, beside=beside, carried=carried))
    return out


def backward(layers: Sequence[Layer], stage: int, microbatch: int, at: Shape) -> list[Access]:
    """The accesses of one backward."""
    out = []
    for i, layer in reversed(list(enumerate(layers))):
        incoming, outgoing = at.border_bytes * (layer.kind != "head"), at.border_bytes * (layer.kind != "embedding")
        saved = (Buffer("saved", stage, i, microbatch),)
        beside = backward_bytes(layer, at) + incoming + outgoing
        uses = (*_weights(layers, stage, i), *saved)
        out.append(Access("B", stage, i, microbatch, uses, frees=saved, beside=beside, carried=outgoing if i else 0))
    return out


def _update(layers: Sequence[Layer], stage: int) -> list[Access]:
    out = []
    for u in range(len(units(layers))):
        both = (Buffer("weights", stage, u), Buffer("optimizer", stage, u))
        out.append(Access("U", stage, u, uses=both, writes=both))
    return out


def _weights(layers: Sequence[Layer], stage: int, layer: int) -> tuple[Buffer, ...]:
    return tuple(Buffer("weights", stage, u) for u, unit in enumerate(units(layers)) if layer in unit.layers)
