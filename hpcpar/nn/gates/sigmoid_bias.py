"""Sigmoid scores with a selection bias instead of an auxiliary loss (DeepSeek-V3, 2024; Wang et al. 2024, "Auxiliary-loss-free").

    s = sigmoid(z); the k largest of s + b are chosen, weighted by s alone
    b_e += rate sign(mean count - count_e)      once an update, from the counts of the whole batch before the drop

With `expert_groups` and `limit`, a token chooses among the experts of its `limit` best groups, a group's score being the sum of its two
largest s + b. The balance loss, off by default, is Switch's with s divided by its sum over experts (V3's sequence-wise one).
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.auxiliary import share, switch, switch_backward
from hpcpar.nn.gates.choice import Choice, Place, ranked, sigmoid
from hpcpar.ops.array import array_module

ROUTER = ("router",)
NORMALISE = "before"
BALANCE = 0.0


def choose(z: Any, bias: Any, place: Place) -> Choice:
    """z (G, S, E), bias (E,)."""
    s = sigmoid(z)
    return Choice(s, ranked(_limited(s + bias, place)), None, ())


def _limited(t: Any, place: Place) -> Any:
    """t (G, S, E) with -inf outside of the best `limit` groups of experts of each token."""
    n, most = place.moe.expert_groups, place.moe.limit
    if not most or most == n:
        return t
    xp, groups = array_module(t), t.reshape(*t.shape[:2], n, -1)
    best = xp.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
    return xp.where((ranked(best) < most)[..., None], groups, -xp.inf).reshape(t.shape)


def backward(dscores: Any, choice: Choice, place: Place) -> Any:
    """dscores (G, S, E) -> dz (G, S, E)."""
    s = choice.scores
    return dscores * s * (1 - s)


def balance(choice: Choice, place: Place) -> Any:
    """Switch's loss of the scores divided by their sum."""
    s = choice.scores
    return switch(s / s.sum(axis=-1, keepdims=True), share(choice, place.moe.k))


def balance_backward(choice: Choice, place: Place) -> Any:
    """Its gradient dz (G, S, E)."""
    s = choice.scores
    total = s.sum(axis=-1, keepdims=True)
    dp = switch_backward(s, share(choice, place.moe.k))
    ds = dp / total - (dp * s).sum(axis=-1, keepdims=True) / (total * total)
    return backward(ds, choice, place)
