"""Auxiliary losses of a group of tokens and their gradients: all before the drop, and straight into the scores.

switch       E sum_e f_e P_e        f_e the share of choices that expert e has (no gradient), P_e its mean score
                                    Fedus et al. 2021, eq. 4; over k choices as in Megatron, so that even routing gives 1
gshard       1/E sum_e c_e/S m_e    c_e first choices, m_e mean score (Lepikhin et al. 2020, algorithm 1): switch / E^2
cv2          var / (mean^2 + 1e-10) of E numbers, population variance (Shazeer et al. 2017, eq. 7)
z            mean over tokens of (log sum_e e^z)^2 (Zoph et al. 2022, eq. 5)
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.choice import Choice, softmax
from hpcpar.ops.array import array_module


def share(choice: Choice, k: int) -> Any:
    """f (G, 1, E): the share of the k S choices of a group that each expert has."""
    return (choice.order < k).mean(axis=1, keepdims=True, dtype=choice.scores.dtype) / k


def switch(scores: Any, f: Any) -> Any:
    """scores (G, S, E), f (G, 1, E) -> (G,)."""
    return scores.shape[2] * (f * scores.mean(axis=1, keepdims=True)).sum(axis=(1, 2))


def switch_backward(scores: Any, f: Any) -> Any:
    """The gradient of the sum over groups: dscores (G, S, E)."""
    return array_module(f).broadcast_to(scores.shape[2] / scores.shape[1] * f, scores.shape)


def cv2(x: Any) -> Any:
    """x (G, E) -> (G,): the squared coefficient of variation."""
    mean = x.mean(axis=1)
    return x.var(axis=1) / (mean * mean + 1e-10)


def cv2_backward(x: Any) -> Any:
    """The gradient of the sum over groups: dx (G, E)."""
    mean = x.mean(axis=1, keepdims=True)
    below = mean * mean + 1e-10
    return 2 / x.shape[1] * ((x - mean) / below - x.var(axis=1, keepdims=True) * mean / (below * below))


def z_loss(z: Any) -> Any:
    """z (G, S, E) -> (G,)."""
    return (_log_sum(z) ** 2).mean(axis=(1, 2))


def z_loss_backward(z: Any) -> Any:
    """The gradient of the sum over groups: dz (G, S, E)."""
    return 2 / z.shape[1] * _log_sum(z) * softmax(z)


def _log_sum(z: Any) -> Any:
    xp, top = array_module(z), z.max(axis=-1, keepdims=True)
    return top + xp.log(xp.exp(z - top).sum(axis=-1, keepdims=True))
