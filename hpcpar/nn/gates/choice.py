"""What a gate decides for a group of tokens, as arrays (G, S, E), and what gates share: softmax, ranks, weights that add up to 1.

    scores of a token    0.1  0.5  0.1  0.3        order    2  0  3  1        k = 2: expert 1 first, expert 3 second
                                                            of equal scores the lowest expert is first

Weights are scores of the experts that keep the token, divided by the sum over what was wanted ("before" the drop) or kept ("after").
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcpar.config import Moe
from hpcpar.ops import dropout, noise
from hpcpar.ops.array import array_module

EPSILON = 1e-9  # added to sums that divide, as in Mesh's and GShard's code


class Place(NamedTuple):
    """What a gate is told besides scores: G groups of S tokens, the first of which has the global index `first` in the step's batch."""

    moe: Moe
    xp: Any
    dtype: Any
    groups: int
    tokens: int
    first: int
    positions: int  # tokens of a sample
    seed: int
    name: str
    step: int
    training: bool

    def uniform(self, what: str, *width: int) -> Any:
        """Numbers in (0, 1), (G, S) or (G, S, width): from (seed, name, step, global index)."""
        return noise.uniform(self.xp, self._key(what), self.first * (width[0] if width else 1), (self.groups, self.tokens, *width))

    def normal(self, what: str, width: int) -> Any:
        """Standard normal numbers (G, S, width), likewise."""
        return noise.normal(self.xp, self._key(what), self.first * width, (self.groups, self.tokens, width), self.dtype)

    def _key(self, what: str) -> int:
        return dropout.key(self.seed, f"{self.name}.{what}", self.step)


class Choice(NamedTuple):
    """`scores` >= 0 are what weights are made of; `order` is 0 for a token's first choice, up to k - 1, and at least k where not wanted.

    `skipped` marks choices that chance leaves out; `saved` is what the gate's backward needs besides.
    """

    scores: Any
    order: Any
    skipped: Any
    saved: tuple[Any, ...]


def wanted(choice: Choice, k: int) -> Any:
    """(G, S, E): whether the token is to go to the expert."""
    mask = choice.order < k
    return mask if choice.skipped is None else mask & ~choice.skipped


def ranked(scores: Any) -> Any:
    """scores (G, S, E) -> order: how many experts come before, equal scores in the order of the experts."""
    xp = array_module(scores)
    by = xp.argsort(-scores, axis=-1, kind="stable")
    return xp.argsort(by, axis=-1).astype(xp.int16)


def softmax(z: Any) -> Any:
    """Over the last dim."""
    e = array_module(z).exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_backward(dp: Any, p: Any) -> Any:
    """dp, p (..., E) -> dz."""
    return p * (dp - (dp * p).sum(axis=-1, keepdims=True))


def sigmoid(z: Any) -> Any:
    """1 / (1 + e^-z) through tanh, which never overflows."""
    return 0.5 * (1 + array_module(z).tanh(0.5 * z))


def weights(scores: Any, over: Any, keep: Any) -> Any:
    """scores, over, keep (G, S, E) -> weights, zero where not kept, with 1 as the sum of what `over` marks; None does not divide."""
    w = scores * keep
    return w if over is None else w / ((scores * over).sum(axis=-1, keepdims=True) + EPSILON)


def weights_backward(dw: Any, scores: Any, over: Any, keep: Any) -> Any:
    """dw (G, S, E) -> dscores."""
    dw = dw * keep
    if over is None:
        return dw
    total = (scores * over).sum(axis=-1, keepdims=True) + EPSILON
    return dw / total - over * ((dw * scores).sum(axis=-1, keepdims=True) / (total * total))
