"""Noisy top-k (Shazeer et al. 2017, "Outrageously large neural networks").

    H = clean + n std, std = softplus(raw) + 1e-2, n normal       z = (clean, raw), in training; H = clean without      eq. 4
    G = softmax over the k largest of H                                                                                 eq. 3, 5
    importance_e = sum_x G_e(x)                                                                                         eq. 6
    load_e = sum_x Phi((clean_e - threshold_e) / std_e)           the k-th largest of the other experts' H             eq. 8, 9
    loss = CV(importance)^2 + CV(load)^2

The threshold is the (k+1)-th largest of H for a chosen expert, else the k-th; its gradient is followed too. With k = E, or without noise,
the load is the number of tokens, which has no gradient.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn.gates.auxiliary import cv2, cv2_backward
from hpcpar.nn.gates.choice import Choice, Place, ranked, sigmoid, softmax, softmax_backward, weights, weights_backward
from hpcpar.ops.array import array_module
from hpcpar.ops.noise import density, distribution

ROUTER = ("router", "noise")
NORMALISE = "before"
BALANCE = 1e-1  # of the paper's language models: w_importance = w_load = 0.1

LEAST = 1e-2


def choose(z: Any, bias: Any, place: Place) -> Choice:
    """z (G, S, 2E): clean scores, then those of the noise."""
    e = place.moe.experts
    clean, raw = z[..., :e], z[..., e:]
    if not place.training:
        return Choice(softmax(clean), ranked(clean), None, (clean, None, None, None))
    n, std = place.normal("noise", e), _softplus(raw) + LEAST
    h = clean + n * std
    return Choice(softmax(h), ranked(h), None, (h, n, std, sigmoid(raw)))


def backward(dscores: Any, choice: Choice, place: Place) -> Any:
    """dscores (G, S, E) -> dz (G, S, 2E)."""
    return _to_z(softmax_backward(dscores, choice.scores), 0, choice)


def balance(choice: Choice, place: Place) -> Any:
    """CV^2 of importance and load."""
    return cv2(_gates(choice, place).sum(axis=1)) + cv2(_load(choice, place))


def balance_backward(choice: Choice, place: Place) -> Any:
    """Its gradient dz (G, S, 2E): through the gates, and through the load in clean scores, noise and threshold."""
    p, k = choice.scores, place.moe.k
    chosen = choice.order < k
    dgates = cv2_backward(_gates(choice, place).sum(axis=1))[:, None, :]
    dh = softmax_backward(weights_backward(dgates * chosen, p, chosen, chosen), p)
    if not _smooth(choice, place):
        return _to_z(dh, 0, choice)
    x, kth, next_one = _margin(choice, place)  # x = (clean - threshold) / std
    dx = cv2_backward(_load(choice, place))[:, None, :] * density(x)
    dclean = dx / choice.saved[2]
    dh = dh - kth * (dclean * ~chosen).sum(axis=-1, keepdims=True) - next_one * (dclean * chosen).sum(axis=-1, keepdims=True)
    return _to_z(dh, -x * dclean, choice, dclean)


def _to_z(dh: Any, dstd: Any, choice: Choice, dclean: Any = 0) -> Any:
    """Gradients of H, std and clean -> dz (G, S, 2E)."""
    xp, (_, n, _, slope) = array_module(dh), choice.saved
    if n is None:
        return xp.concatenate((dh + dclean, xp.zeros_like(dh)), axis=-1)
    return xp.concatenate((dh + dclean, (dh * n + dstd) * slope), axis=-1)


def _gates(choice: Choice, place: Place) -> Any:
    chosen = choice.order < place.moe.k
    return weights(choice.scores, chosen, chosen)


def _smooth(choice: Choice, place: Place) -> bool:
    """Whether the load is a probability: there is noise, and a threshold for every expert."""
    return choice.saved[1] is not None and place.moe.k < place.moe.experts


def _margin(choice: Choice, place: Place) -> tuple[Any, Any, Any]:
    """(clean - threshold) / std, and which expert is the k-th and the (k+1)-th of a token."""
    h, n, std, _ = choice.saved
    kth, next_one = choice.order == place.moe.k - 1, choice.order == place.moe.k
    chosen = choice.order < place.moe.k
    of = array_module(h).where(chosen, (h * next_one).sum(axis=-1, keepdims=True), (h * kth).sum(axis=-1, keepdims=True))
    return (h - of) / std - n, kth, next_one


def _load(choice: Choice, place: Place) -> Any:
    """(G, E)."""
    if _smooth(choice, place):
        return distribution(_margin(choice, place)[0]).sum(axis=1)
    return (choice.order < place.moe.k).sum(axis=1).astype(choice.scores.dtype)


def _softplus(x: Any) -> Any:
    xp = array_module(x)
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))
