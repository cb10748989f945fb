"""Gates: which experts a token goes to, with which weight. A file a gate; each has

    ROUTER                              the matrices of its router, side by side: z has E scores of each
    NORMALISE, BALANCE                  its paper's normalisation and coefficient of the auxiliary loss
    choose(z, bias, place) -> Choice                    z (G, S, R): G groups of S tokens
    backward(dscores, choice, place) -> dz              the gradient of scores (G, S, E)
    balance(choice, place) -> losses (G,)               its auxiliary loss, before the drop, a number a group
    balance_backward(choice, place) -> dz               the gradient of their sum

A gate without a router has the first two and `choose` alone.
"""

from typing import Any

from hpcpar.nn.gates import balanced, base, expert_choice, gshard, hashed, noisy_topk, sigmoid_bias, switch, topk

GATES: dict[str, Any] = {
    "noisy-topk": noisy_topk,
    "gshard": gshard,
    "switch": switch,
    "topk": topk,
    "sigmoid-bias": sigmoid_bias,
    "expert-choice": expert_choice,
    "base": base,
    "hash": hashed,
    "balanced": balanced,
}

__all__ = ["GATES"]
