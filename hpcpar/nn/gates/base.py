"""Balanced assignment (Lewis et al. 2021, "BASE layers"): in training every expert gets equally many tokens of a group.

    a = argmax sum_n z[n, a_n]     at most ceil(S / E) tokens an expert           y = sigmoid(z[n, a_n]) E_{a_n}(x)       section 3
    without training a_n is the largest of z[n]

    too many   0 --7--> 2 --1--> 1   room        every token starts at its best expert; then, for each token too many, one token moves along
               0 ------9-------> 1               each edge of the cheapest chain. An edge costs what the token that loses least by it loses.

The chains are the shortest augmenting paths of the assignment's flow, so that the sum is the largest there is; the paper's auction is near
it. They are found on the host. **Not causal** in training: whether a token gets its best expert depends on later ones.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from hpcpar.nn.gates.choice import Choice, Place, ranked, sigmoid
from hpcpar.ops.array import host_array

ROUTER = ("router",)
NORMALISE = "none"
BALANCE = 0.0

FAR = 1e30  # what stands for infinite scores of a run that diverges
MARGIN = 1e-12  # of the scores: a chain must be so much shorter, so that rounding makes no endless one


def choose(z: Any, bias: Any, place: Place) -> Choice:
    """z (G, S, E)."""
    scores = sigmoid(z)
    if not place.training:
        return Choice(scores, ranked(z), None, ())
    of = place.xp.asarray(np.stack([assign(group) for group in host_array(z)]))
    other = place.xp.arange(z.shape[2]) != of[..., None]
    return Choice(scores, other.astype(place.xp.int16), None, ())


def backward(dscores: Any, choice: Choice, place: Place) -> Any:
    """dscores (G, S, E) -> dz (G, S, E); the assignment has no gradient."""
    return dscores * choice.scores * (1 - choice.scores)


def balance(choice: Choice, place: Place) -> Any:
    """None is needed."""
    return choice.scores[:, 0, 0] * 0


def balance_backward(choice: Choice, place: Place) -> Any:
    """Zero."""
    return choice.scores * 0


def assign(z: np.ndarray) -> np.ndarray:
    """z (S, E) -> the expert of each token (S,), at most ceil(S / E) tokens each, with the largest sum of scores."""
    tokens, experts = z.shape
    z = np.nan_to_num(z.astype(np.float64), posinf=FAR, neginf=-FAR)
    of, most = z.argmax(axis=1), -(-tokens // experts)
    load, loss = np.bincount(of, minlength=experts), z.max(axis=1, keepdims=True) - z
    cost, token = np.full((experts, experts), inf), np.zeros((experts, experts), np.int64)
    margin, changed = MARGIN * max(1.0, float(abs(z).max())), list(range(experts))
    while True:
        for a in changed:  # the cheapest token for each edge that begins at a
            mine = np.flatnonzero(of == a)
            if len(mine):
                token[a] = mine[loss[mine].argmin(axis=0)]
            cost[a] = loss[token[a], np.arange(experts)] if len(mine) else inf
            cost[a, a] = inf
        if load.max() <= most:
            return of
        changed = _chain(cost, load > most, load < most, margin)
        for n, b in [(token[a, b], b) for a, b in pairwise(changed)]:
            of[n], loss[n] = b, z[n, b] - z[n]
        load[changed[0]] -= 1
        load[changed[-1]] += 1


def _chain(cost: np.ndarray, full: np.ndarray, room: np.ndarray, margin: float) -> list[int]:
    """The cheapest path from an expert with too many tokens to one with room (Bellman and Ford: costs may be negative, rounds may not)."""
    way, before = np.where(full, 0.0, inf), np.full(len(full), -1)
    for _ in range(len(full) - 1):
        through = way[:, None] + cost
        shorter = through.min(axis=0) < way - margin
        before[shorter] = through.argmin(axis=0)[shorter]
        way = np.where(shorter, through.min(axis=0), way)
        if not shorter.any():
            break
    path = [int(np.where(room, way, inf).argmin())]
    while before[path[0]] >= 0:
        path.insert(0, int(before[path[0]]))
    return path
