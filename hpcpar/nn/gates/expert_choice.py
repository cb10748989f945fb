"""Experts choose tokens (Zhou et al. 2022): each takes the C largest of its column of p = softmax(z), C = k f S / E.

The load is balanced by construction, and a token may go to none or to many. k is the average number of experts of a token (the paper's
c = 2 is k = 2 with factor 1). **Not causal**: whether a token is computed depends on those after it in its group, so that a language
model sees a little of the future; `moe.N.causal` in the trace is 0.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.choice import Choice, Place, softmax, softmax_backward

ROUTER = ("router",)
NORMALISE = "none"
BALANCE = 0.0


def choose(z: Any, bias: Any, place: Place) -> Choice:
    """z (G, S, E): every expert is a first choice of every token; the capacity decides."""
    return Choice(softmax(z), place.xp.zeros(z.shape, place.xp.int16), None, ())


def backward(dscores: Any, choice: Choice, place: Place) -> Any:
    """dscores (G, S, E) -> dz (G, S, E)."""
    return softmax_backward(dscores, choice.scores)


def balance(choice: Choice, place: Place) -> Any:
    """None is needed."""
    return choice.scores[:, 0, 0] * 0


def balance_backward(choice: Choice, place: Place) -> Any:
    """Zero."""
    return choice.scores * 0
