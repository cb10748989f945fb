"""Tokens and arithmetic a second, and what fraction of the machine's own matrix rate that is.

tokens_per_s = tokens of a step / mean time of a step
flops_per_s  = hpcpar.nn.describe.step_flops of the batch / mean time of a step       recompute is not counted
fraction     = flops_per_s / sum over ranks of machine.matrix_flops_per_s             as the run measured it at its start
mfu          = flops_per_s / (ranks x peak)          PaLM's model FLOP utilisation; without a given peak, the fraction; never a guess
"""

from __future__ import annotations

from typing import Any

from hpcpar.analyse.steps import Steps
from hpcpar.config import Config, build
from hpcpar.errors import PlanError
from hpcpar.nn.describe import step_flops
from hpcpar.trace import Trace


def config(trace: Trace) -> Config | None:
    """The configuration that the trace holds; None if it holds none, or one that this version cannot read."""
    stored = trace.description.get("config")
    try:
        return build(stored) if stored else None
    except PlanError:
        return None


def throughput(trace: Trace, found: Steps, peak: float | None = None) -> dict[str, Any] | None:
    """tokens_per_step, tokens_per_s, step_flops, flops_per_s, machine_flops_per_s, fraction, mfu, peak_flops_per_s (of all ranks) and
    peak_from ("given" or "measured"); None where a number is not known. `peak` is that of one rank's device in FLOP/s.

    Emulated stages (train.emulate) do no arithmetic: of them only the tokens and the peak are known.
    """
    described = config(trace)
    if described is None or not found.measured.any():
        return None
    mean_s = float(found.seconds[found.measured].mean())
    tokens = described.train.batch * described.model.context
    flops = None if described.train.asleep else step_flops(described.model, described.train.batch)
    machine = _machine(trace)
    rate = flops / mean_s if flops is not None and mean_s else None
    against = machine if peak is None else peak * trace.ranks
    return {
        "tokens_per_step": tokens,
        "tokens_per_s": tokens / mean_s if mean_s else None,
        "step_flops": flops,
        "flops_per_s": rate,
        "machine_flops_per_s": machine,
        "fraction": rate / machine if rate is not None and machine else None,
        "mfu": rate / against if rate is not None and against else None,
        "peak_flops_per_s": against,
        "peak_from": None if against is None else "measured" if peak is None else "given",
    }


def _machine(trace: Trace) -> float | None:
    """The matrix rate of all ranks together: stored as that, or as the rate of one of them."""
    stored = trace.description.get("machine") or {}
    if stored.get("matrix_flops_per_s"):
        return float(stored["matrix_flops_per_s"])
    one = stored.get("matrix_flops_per_s_rank")
    return float(one) * trace.ranks if one else None
