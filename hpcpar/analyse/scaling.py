"""Several runs against one of them: speed-up, efficiency, and what of it is lost where.

strong scaling   the same batch on more ranks          weak scaling   a batch that grows with the ranks
speedup     = tokens_per_s / baseline's
efficiency  = (tokens_per_s / ranks) / baseline's      strong: T0 n0 / (T n); weak: T0 / T
computation = (useful time / token) of the baseline / that of the run       more useful time a token: slower or more work
efficiency  = computation x parallel / parallel of the baseline             parallel efficiency: pop.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Report = dict[str, Any]


def fewest(reports: Sequence[Report]) -> int:
    """The run with the fewest ranks, the first of several: the default baseline."""
    return min(range(len(reports)), key=lambda i: reports[i]["run"]["ranks"])


def scaling(reports: Sequence[Report], baseline: int | None = None) -> list[dict[str, Any]]:
    """A row a run: run, ranks, tokens_per_step, tokens_per_s, kind ("baseline", "same", "strong", "weak", "other"), speedup, efficiency,
    computation, parallel; None where a number is not known, and all but the first four of a run of another model."""
    base = reports[fewest(reports) if baseline is None else baseline]
    return [_row(r, base) for r in reports]


def _row(r: Report, base: Report) -> dict[str, Any]:
    (ranks, tokens, rate), (ranks0, tokens0, rate0) = _speed(r), _speed(base)
    same = r["run"]["model"] is not None and r["run"]["model"] == base["run"]["model"]
    known = same and rate is not None and rate0 is not None
    speedup = rate / rate0 if known else None
    useful, useful0 = _useful(r), _useful(base)
    return {
        "run": r["run"]["folder"],
        "ranks": ranks,
        "tokens_per_step": tokens,
        "tokens_per_s": rate,
        "kind": "baseline" if r is base else _kind(ranks, tokens, ranks0, tokens0) if same else None,
        "speedup": speedup,
        "efficiency": speedup * ranks0 / ranks if speedup is not None else None,
        "computation": useful0 / useful if same and useful and useful0 else None,
        "parallel": (r["efficiency"] or {}).get("parallel") if same else None,
    }


def _speed(r: Report) -> tuple[int, int | None, Any]:
    t = r["throughput"] or {}
    return r["run"]["ranks"], t.get("tokens_per_step"), t.get("tokens_per_s")


def _kind(ranks: int, tokens: int | None, ranks0: int, tokens0: int | None) -> str:
    if tokens is None or tokens0 is None:
        return "other"
    if tokens == tokens0:
        return "same" if ranks == ranks0 else "strong"
    return "weak" if tokens * ranks0 == tokens0 * ranks else "other"


def _useful(r: Report) -> float | None:
    """Useful time in s a token, over all ranks."""
    e, (ranks, _, rate) = r["efficiency"], _speed(r)
    return e["parallel"] * ranks / rate if e and rate else None
