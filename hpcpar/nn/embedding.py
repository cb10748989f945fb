"""The embedding layer: tokens and, where learned, positions.

    1 x = tokens[ids] + positions      2 x = dropout(x)

Where a rank holds a part of each sample, its rows take the positions' rows of the same part, and have gradients for those alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hpcpar.nn.context import Microbatch, Sink
from hpcpar.ops.array import array_module


def forward(ids: Any, w: dict[str, Any], at: Microbatch, name: str) -> tuple[Any, Any]:
    """ids (B, T) -> x (B*T, D), the rows of it that this rank sees, saved."""
    table = w.get("positions.weight")
    if table is not None and at.frame.runs:
        w = w | {"positions.weight": array_module(table).concatenate([table[run] for run in at.frame.runs])}
    x, saved = at.frame.vocabulary.embed(ids, w, at)
    return at.dropout(x, name), saved


def backward(dx: Any, saved: Any, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> None:
    """dx of what the forward gave; ids have no gradient."""
    dx = at.dropout(dx, name, backward=True)
    backward_weight, held = at.frame.vocabulary.embed_backward(dx, saved, at)
    sink("tokens positions", partial(_of_runs, backward_weight, at.frame.runs) if at.frame.runs else backward_weight, held)


def _of_runs(backward_weight: Callable[..., None], runs: tuple[slice, ...], held: Any, dtokens: Any, dpositions: Any, add: bool) -> None:
    """The W of a rank that holds `runs` of each sample: rows of other positions have no gradient here."""
    if dpositions is None:
        backward_weight(held, dtokens, None, add)
        return
    rows = array_module(dpositions).concatenate([dpositions[run] for run in runs])
    backward_weight(held, dtokens, rows, add)
    if not add:
        dpositions[...] = 0
    start = 0
    for run in runs:
        stop = start + run.stop - run.start
        dpositions[run] = rows[start:stop]
        start = stop
