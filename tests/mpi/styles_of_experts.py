"""Styles with mixtures of experts for the proof: every gate, with drops and without; importing adds them to `proof.STYLES`."""

from __future__ import annotations

from typing import Any

import proof

DROPS = {"capacity": {"policy": "floor", "factor": 0.9}}
EXPERTS: dict[str, dict[str, Any]] = {
    "noisy-topk": {"k": 2, **DROPS},
    "gshard": {"k": 2, **DROPS},
    "switch": {"k": 1, **DROPS, "dropout": 0.2, "initial": 0.1, "jitter": 0.1},
    "topk": {"k": 2, "z_loss": 0.01},
    "sigmoid-bias": {"k": 2, "shared": 1, "expert_groups": 2, "limit": 1, "balance": 0.01, "bias_rate": 0.01},
    "expert-choice": {"k": 2, **DROPS},
    "base": {"k": 1},
    "hash": {"k": 2},
    "balanced": {"k": 2, **DROPS},
}
RANDOM = {"k": 3, "group": 2, "capacity": {"policy": "megatron", "factor": 0.8, "order": "random"}, "normalise": "after"}


def _style(gate: str, base: str = "gpt-tied", **more: Any) -> dict[str, Any]:
    return {**proof.STYLES[base], "layers": 4, "mlp_width": 20, "moe": {"experts": 6, "gate": gate, "every": 2, **EXPERTS[gate], **more}}


STYLES = {f"experts-{gate}": _style(gate) for gate in EXPERTS}
STYLES["experts-random"] = _style("topk", **RANDOM)
STYLES["experts-llama"] = _style("topk", "llama-untied", every=1, balance=0.1)
proof.STYLES |= STYLES
