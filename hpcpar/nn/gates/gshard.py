"""Top-2 with a second expert by chance (Lepikhin et al. 2020, "GShard", algorithm 1).

    g1, g2 the two largest of softmax(z), divided by their sum; the second expert is used where 2 g2 > U(0, 1), in training alone

A token whose second expert is left out keeps g1 as it is.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.auxiliary import share, switch, switch_backward
from hpcpar.nn.gates.choice import EPSILON, Choice, Place, ranked, softmax, softmax_backward

ROUTER = ("router",)
NORMALISE = "before"
BALANCE = 1e-2


def choose(z: Any, bias: Any, place: Place) -> Choice:
    """z (G, S, E)."""
    p, order = softmax(z), ranked(z)
    if not place.training:
        return Choice(p, order, None, ())
    second = (p * (order == 1)).sum(axis=-1)
    share_of_second = second / ((p * (order < 2)).sum(axis=-1) + EPSILON)
    out = 2 * share_of_second <= place.uniform("second")
    return Choice(p, order, (order == 1) & out[..., None], ())


def backward(dscores: Any, choice: Choice, place: Place) -> Any:
    """dscores (G, S, E) -> dz (G, S, E)."""
    return softmax_backward(dscores, choice.scores)


def balance(choice: Choice, place: Place) -> Any:
    """1/E sum_e c_e/S m_e over first choices."""
    return switch(choice.scores, share(choice, 1)) / place.moe.experts**2


def balance_backward(choice: Choice, place: Place) -> Any:
    """Its gradient dz (G, S, E)."""
    return softmax_backward(switch_backward(choice.scores, share(choice, 1)), choice.scores) / place.moe.experts**2
