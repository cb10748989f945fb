"""The k largest of a softmax: Mixtral's gate (Jiang et al. 2024).

p = softmax(z) over all experts; divided by their sum, the chosen ones are the softmax over the chosen. `normalise = "none"` keeps p.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.auxiliary import share, switch, switch_backward
from hpcpar.nn.gates.choice import Choice, Place, ranked, softmax, softmax_backward

ROUTER = ("router",)
NORMALISE = "before"
BALANCE = 1e-2


def choose(z: Any, bias: Any, place: Place) -> Choice:
    """z (G, S, E)."""
    return Choice(softmax(z), ranked(z), None, ())


def backward(dscores: Any, choice: Choice, place: Place) -> Any:
    """dscores (G, S, E) -> dz (G, S, E)."""
    return softmax_backward(dscores, choice.scores)


def balance(choice: Choice, place: Place) -> Any:
    """Switch's loss over all k choices."""
    return switch(choice.scores, share(choice, place.moe.k))


def balance_backward(choice: Choice, place: Place) -> Any:
    """Its gradient dz (G, S, E)."""
    return softmax_backward(switch_backward(choice.scores, share(choice, place.moe.k)), choice.scores)
