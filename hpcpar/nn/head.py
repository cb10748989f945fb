"""The head: final norm, vocabulary, loss.

    1 h = norm(x)      2 logits = h W'      3 loss = sum over unmasked rows of (log sum exp(logits) - logits[label])

The sum is divided by the number of unmasked tokens of the whole global batch: that is the `scale` of the backward, never a mean of means.
"""

from __future__ import annotations

from typing import Any

from hpcpar.nn import entered
from hpcpar.nn.block import norm_backward, norm_forward
from hpcpar.nn.context import Microbatch, Sink
from hpcpar.ops import linear


def logits(x: Any, w: dict[str, Any], at: Microbatch) -> Any:
    """x (B*T, D) -> (B*T, V)."""
    h, _ = norm_forward(x, w, "norm", at)
    return linear.forward(h, w["vocabulary.weight"], None)[0]


def forward(x: Any, labels: Any, w: dict[str, Any], at: Microbatch) -> tuple[float, tuple]:
    """x (B*T, D), labels (B*T,), -1 ignored -> the sum of the losses, saved."""
    h, s1 = norm_forward(x, w, "norm", at)  # 1
    y, s2 = entered.forward(h, w["vocabulary.weight"], None, at)  # 2
    loss, s3 = at.frame.vocabulary.loss(y, labels)  # 3
    return loss, (s1, s2, s3)


def backward(scale: float, saved: tuple, w: dict[str, Any], sink: Sink, at: Microbatch) -> Any:
    """The gradient of scale x loss: dx (B*T, D)."""
    s1, s2, s3 = saved
    dlogits = at.frame.vocabulary.loss_backward(scale, s3)  # 3
    dh = entered.backward(dlogits, s2, w["vocabulary.weight"], "vocabulary", linear.backward_weight, sink, at)  # 2
    return norm_backward(dh, s1, w, "norm", sink, at)  # 1
