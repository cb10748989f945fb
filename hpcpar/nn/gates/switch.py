"""Top-1 (Fedus et al. 2021, "Switch Transformers"): y = p_i(x) E_i(x), i the largest of p = softmax(z).

The probability is kept as it is: divided by itself it would give the router no gradient. That is all that sets it apart from `topk`.
"""

from __future__ import annotations

from hpcpar.nn.gates.topk import backward, balance, balance_backward, choose

__all__ = ["BALANCE", "NORMALISE", "ROUTER", "backward", "balance", "balance_backward", "choose"]

ROUTER = ("router",)
NORMALISE = "none"
BALANCE = 1e-2
