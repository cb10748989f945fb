"""How many tokens of a group an expert takes, and who keeps a place when more want one.

    floor      int(f k S / E)                          MegaBlocks' MoE
    ceil       the least integer >= f k S / E, exactly
    mesh       max(min(S, int(S f / E)), minimum = 4)  no k: with top-2 half of what others take (Switch has k = 1)
    gshard     int(f 2 S / E)                          the paper's 2N / (G E) has f = 1 (Lepikhin et al. 2020)
    deepspeed  max(ceil(S / E f k), minimum = 4)
    megatron   max(ceil(S k / E f), minimum = 0)
    tutel      k int(f ceil(S / E))                    before its alignment

S tokens in the group, E experts, k choices, f factor. The named ones round as their code does, in floating point.

Orders: `position`, all first choices before any second one, then the earlier token; `probability`, each expert keeps its largest scores;
`random`, the largest of uniform numbers, in training (without, `position`). Ties: the earliest token.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any

from hpcpar.config import Capacity
from hpcpar.nn.gates.choice import Choice, Place, wanted
from hpcpar.ops.array import array_module

POLICIES: dict[str, Callable[[int, int, int, float, int | None], int]] = {
    "floor": lambda s, e, k, f, least: max(int(f * k * s / e), least or 0),
    "ceil": lambda s, e, k, f, least: max(ceil(Fraction(repr(f)) * k * s / e), least or 0),
    "mesh": lambda s, e, k, f, least: max(min(s, int(s * f / e)), 4 if least is None else least),
    "gshard": lambda s, e, k, f, least: max(int(f * 2 * s / e), least or 0),
    "deepspeed": lambda s, e, k, f, least: max(ceil(s / e * f * k), 4 if least is None else least),
    "megatron": lambda s, e, k, f, least: max(ceil(s * k / e * f), least or 0),
    "tutel": lambda s, e, k, f, least: max(k * int(f * ceil(s / e)), least or 0),
}


def limit(capacity: Capacity, tokens: int, experts: int, k: int, training: bool = True) -> int:
    """The tokens that an expert takes of a group of so many: at most all of them."""
    factor = capacity.factor if training or not capacity.evaluation else capacity.evaluation
    return min(tokens, POLICIES[capacity.policy](tokens, experts, k, float(factor), capacity.minimum))


def kept(choice: Choice, place: Place) -> Any:
    """(G, S, E): which of the wanted assignments find a place."""
    moe = place.moe
    want = wanted(choice, moe.k)
    if moe.capacity is None:
        return want
    most = limit(moe.capacity, place.tokens, moe.experts, moe.k, place.training)
    order = "probability" if moe.gate == "expert-choice" else moe.capacity.order
    if order == "position" or (order == "random" and not place.training):
        return by_position(choice, want, moe.k, most, moe.capacity.skipped == "hold")
    return by_priority(place.uniform("drop", moe.experts) if order == "random" else choice.scores, want, most)


def by_position(choice: Choice, want: Any, k: int, most: int, hold: bool) -> Any:
    """First choices first, then the earlier token; `hold` says that a choice that chance leaves out takes its place all the same.

    Held places are GShard's (algorithm 1 counts on whether or not it dispatches), free ones Mesh's.
    """
    keep, before = want & False, 0
    for j in range(k):
        asked = choice.order == j
        if not hold:
            asked &= want
        place = asked.cumsum(axis=1) - asked + before
        keep |= asked & want & (place < most)
        before = before + asked.sum(axis=1, keepdims=True)
    return keep


def by_priority(priority: Any, want: Any, most: int) -> Any:
    """The `most` largest of priority (G, S, E) of every expert among those that want it."""
    xp = array_module(priority)
    by = xp.argsort(xp.where(want, -priority, xp.inf), axis=1, kind="stable")
    return want & (xp.argsort(by, axis=1) < most)
