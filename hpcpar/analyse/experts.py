"""How evenly the tokens of each mixture of experts were spread, from the metrics that `run/routing.py` describes.

    tokens of a step    expert 0  1  2  3          imbalance   max / mean = 40 / 20 = 2
                              40 20 10 10          cv          standard deviation / mean, of the population
                                                   unused      experts without a token: 0

Tokens are what the experts compute, after the drop, of all ranks together; `wanted_*` is what the router asked for, before it. A step of a
block counts where every readable rank that has ever recorded the block has it; what a lost rank routed is not in it, and `seen` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from hpcpar.analyse.throughput import config
from hpcpar.errors import PlanError
from hpcpar.trace import Trace

END = 0.1  # of the steps, the last ones: what the router has learnt
SUMS = ("dropped", "unrouted", "routed", "balance", "z")
MEASURES = ("imbalance", "cv", "unused", "wanted_imbalance", "wanted_cv", "drop_rate", "unrouted_rate", "entropy", "balance", "z")


@dataclass(frozen=True)
class Load:
    """One block's routing: `steps` (n,), `tokens` (n, E), `wanted` (n, E), NaN where it is not recorded; `values`, (n,) each, by name."""

    block: int
    steps: np.ndarray
    tokens: np.ndarray
    wanted: np.ndarray
    values: dict[str, np.ndarray]
    causal: bool


def loads(trace: Trace) -> list[Load]:
    """The routing of every block with experts, over the readable ranks."""
    of_blocks: dict[int, list[Table]] = {}
    for rank in trace.present:
        for block, found in _metrics(trace.metrics(rank)).items():
            of_blocks.setdefault(block, []).append(found)
    every = [_load(block, of_blocks[block]) for block in sorted(of_blocks)]
    return [load for load in every if len(load.steps)]


def experts(trace: Trace) -> list[dict[str, Any]]:
    """A row a block: `block`, `experts`, `gate`, `causal`, `steps`, `seen` (share of the batch's tokens) and the MEASURES, as `mean` over
    the steps and as `end`, over the last tenth of them; None where the trace does not hold a number.
    """
    described = config(trace)
    batch = described.train.batch * described.model.context if described else None
    moe = described.model.moe if described else None
    out = []
    for load in loads(trace):
        of_steps = measures(load)
        last = max(1, round(END * len(load.steps)))
        out.append(
            {
                "block": load.block,
                "experts": load.tokens.shape[1],
                "gate": moe.gate if moe else None,
                "causal": load.causal,
                "steps": len(load.steps),
                "seen": float(load.values["routed"].mean()) / batch if batch else None,
                "mean": {name: _mean(of_steps[name]) for name in MEASURES},
                "end": {name: _mean(of_steps[name][-last:]) for name in MEASURES},
            }
        )
    return out


def measures(load: Load) -> dict[str, np.ndarray]:
    """The MEASURES of each step (n,), NaN where one has no meaning.

    drop_rate is dropped / wanted assignments; where experts choose, tokens without any expert / tokens. entropy is in nats a token; balance
    and z are the step's auxiliary losses, coefficients included.
    """
    values, tokens = load.values, load.tokens
    wanted = tokens if load.causal and not values["dropped"].any() else load.wanted  # the same where nothing is dropped
    asked = tokens.sum(axis=1) + values["dropped"] if load.causal else values["routed"]
    imbalance, cv = spread(tokens)
    wanted_imbalance, wanted_cv = spread(wanted)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "imbalance": imbalance,
            "cv": cv,
            "unused": (tokens == 0).sum(axis=1),
            "wanted_imbalance": wanted_imbalance,
            "wanted_cv": wanted_cv,
            "drop_rate": values["dropped"] / asked,
            "unrouted_rate": values["unrouted"] / values["routed"],
            "entropy": values["entropy"],
            "balance": values["balance"],
            "z": values["z"],
        }


def spread(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """counts (n, E) -> max / mean and standard deviation / mean (n,), NaN where all are zero."""
    mean = counts.mean(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return counts.max(axis=1) / mean, counts.std(axis=1) / mean


def heat(trace: Trace) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """{block: (steps (n,), tokens of each expert over their mean (n, E))}; raises PlanError for a trace without experts."""
    found = loads(trace)
    if not found:
        raise PlanError(f"{trace.folder} has no metrics of experts; a run with [model.moe] leaves them")
    with np.errstate(invalid="ignore", divide="ignore"):
        return {load.block: (load.steps, load.tokens / load.tokens.mean(axis=1, keepdims=True)) for load in found}


Table = tuple[np.ndarray, dict[str, np.ndarray]]  # steps (n,), and a column (n,) a name, NaN where it has no value


def _metrics(rows: np.ndarray) -> dict[int, Table]:
    """The table of each block of a rank; of a step that was run again the last value."""
    names, which = np.unique(rows["name"], return_inverse=True)
    steps, at = np.unique(rows["step"], return_inverse=True)
    values = np.full((len(names), len(steps)), np.nan)
    values[which, at] = rows["value"]
    out: dict[int, Table] = {}
    for i, name in enumerate(names.tolist()):
        head, _, rest = name.decode().partition(".")
        block, _, name = rest.partition(".")
        if head == "moe" and block.isdigit():
            out.setdefault(int(block), (steps, {}))[1][name] = values[i]
    return out


def _load(block: int, ranks: list[Table]) -> Load:
    """One block over ranks, on the steps that all of them have whole."""
    whole = []
    for at, columns in ranks:
        needed = [column for name, column in columns.items() if not _is(name, "wanted")]
        whole.append(at[~np.isnan(needed).any(axis=0)])
    steps = reduce(np.intersect1d, whole)
    taken = [{name: column[np.searchsorted(at, steps)] for name, column in columns.items()} for at, columns in ranks]

    def sums(name: str) -> np.ndarray:
        return np.sum([columns[name] for columns in taken], axis=0)

    def by_expert(name: str) -> np.ndarray:
        count = sum(_is(n, name) for n in taken[0])
        return np.stack([sums(f"{name}.{e}") for e in range(count)], axis=1) if count else np.full((len(steps), 1), np.nan)

    values = {name: sums(name) for name in SUMS}
    values["entropy"] = np.sum([columns["entropy"] * columns["routed"] for columns in taken], axis=0) / values["routed"]
    causal = all(bool(columns["causal"].all()) for columns in taken)
    return Load(block, steps, by_expert("tokens"), by_expert("wanted"), values, causal)


def _is(name: str, of: str) -> bool:
    """Whether a metric is a number an expert, like tokens.3."""
    return name.startswith(f"{of}.")


def _mean(values: np.ndarray) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = values[~np.isnan(values.astype(float))]
    return float(known.mean()) if len(known) else None
