"""Experts cut over the ranks of a stage (ep) together with cut layers (tp, sequence), cut samples (cp), pipelines and shards: whole runs of
five steps against one rank with everything."""

from __future__ import annotations

from typing import Any

import pytest
from proof import compare, describe, run, serial
from test_experts_cut import BATCH
from test_resharding import SYNC

PLANS: dict[int, dict[str, dict[str, Any]]] = {
    2: {"ep-cp": {"cp": 2, "ep": 2}},
    4: {
        "ep-tp": {"dp": 2, "ep": 2, "tp": 2},
        "ep-tp-sequence": {"dp": 2, "ep": 2, "tp": 2, "sequence": True, "microbatches": 2, "recompute": "full"},
        "ep-dp-cp": {"dp": 2, "cp": 2, "ep": 4, "context": "ulysses"},
        "ep-cp-tp": {"cp": 2, "tp": 2, "ep": 2},
        "ep-replicas": {"dp": 2, "cp": 2, "ep": 2, "sync": SYNC, "zero": 1},
    },
    8: {
        "ep-tp-pp": {"dp": 2, "ep": 2, "tp": 2, "pp": 2, "microbatches": 4, "schedule": "zb-h1", "sequence": True},
        "ep-tp-cp": {"dp": 2, "cp": 2, "ep": 2, "tp": 2, "sync": SYNC, "microbatches": 2},
    },
}
STYLES = ("gshard drops", "sigmoid-bias dropless", "expert-choice drops", "switch drops")
CASES = [
    pytest.param(style, plan, marks=pytest.mark.mpi(sizes=(size,)), id=f"{style}-{name}")
    for size, plans in PLANS.items()
    for i, (name, plan) in enumerate(plans.items())
    for style in (STYLES if size == 2 else [STYLES[(i + j) % 4] for j in range(2)])
]


@pytest.mark.parametrize("style, plan", CASES)
def test_together(world, style, plan):
    """Losses with auxiliary terms, gradients by name, norms, and weights."""
    got = run(describe(style, plan, dict(BATCH)), world)
    compare(got, serial(style, (), BATCH), exact=False)


WAYS = {
    "fixed": {"counts": "fixed"},
    "pairwise-in-parts": {"exchange": "pairwise", "overlap": 3},
    "two-level-fixed-in-parts": {"exchange": "two-level", "counts": "fixed", "overlap": 2},
}


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("ways", WAYS)
def test_every_way_of_rows_in_a_run(world, ways):
    """Training and evaluation: held-out samples need not fill the last microbatch."""
    plan = {"dp": 2, "ep": 2, "microbatches": 2, "recompute": "full", "experts": WAYS[ways]}
    got = run(describe("switch drops", plan, dict(BATCH)), world)
    compare(got, serial("switch drops", (), BATCH), exact=False)
