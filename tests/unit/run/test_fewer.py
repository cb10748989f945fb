"""A description on fewer replicas, and which runs cannot go on without a rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.config import build
from hpcpar.errors import PlanError
from hpcpar.run import feasible, fewer

SMALL = {"layers": 2, "width": 16, "heads": 2, "context": 16}


def described(*, batch=12, run=None, model=None, emulate=None, **plan):
    train = {"batch": batch, **({"emulate": emulate} if emulate else {})}
    run = {"checkpoint_every": 3, "survive": "shrink", **(run or {})}
    return build({"model": {**SMALL, **(model or {})}, "plan": {"dp": 3, **plan}, "train": train, "run": run})


@pytest.mark.parametrize(
    "plan, ranks, accumulate, microbatches, size",
    [
        ({"dp": 3}, 2, 2, 1, 3),
        ({"dp": 3}, 1, 3, 1, 4),
        ({"dp": 3, "microbatches": 2}, 2, 3, 1, 2),
        ({"dp": 6}, 2, 3, 1, 2),
        ({"dp": 6, "microbatches": 2}, 3, 2, 2, 1),
        ({"dp": 3}, 3, 1, 1, 4),
    ],
)
def test_the_batch_stays_and_no_microbatch_grows(plan, ranks, accumulate, microbatches, size):
    old = described(**plan)
    new = fewer.on(old, ranks)
    assert (new.plan.dp, new.plan.accumulate, new.plan.microbatches) == (ranks, accumulate, microbatches)
    assert feasible.microbatch_size(new) == size
    assert (new.train, new.model, new.run) == (old.train, old.model, old.run)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(1, 8))
def test_any_number_of_ranks_that_divides_the_batch_goes_on(dp, accumulate, microbatches, size, ranks):
    batch = dp * accumulate * microbatches * size
    old = described(batch=batch, dp=dp, accumulate=accumulate, microbatches=microbatches)
    if batch % ranks:
        with pytest.raises(PlanError, match=f"train.batch = {batch} cannot be cut into equal parts for {ranks} ranks"):
            fewer.on(old, ranks)
        return
    new = fewer.on(old, ranks)
    assert new.plan.dp == ranks
    found = feasible.microbatch_size(new)
    assert found <= size
    assert found == max(n for n in range(1, size + 1) if (batch // ranks) % n == 0)
    assert fewer.on(old, dp).plan == old.plan


def test_groups_of_samples_stay_whole():
    moe = {"moe": {"experts": 4, "k": 1, "group": 2}}
    assert feasible.microbatch_size(fewer.on(described(batch=24, dp=3, model=moe), 2)) == 6
    assert feasible.microbatch_size(fewer.on(described(batch=24, dp=6, model=moe), 2)) == 4
    with pytest.raises(PlanError, match="whole groups of 2 samples for 4 ranks"):
        fewer.on(described(batch=12, dp=6, model=moe), 4)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"pp": 2, "dp": 2}, "plan.pp = 2"),
        ({"tp": 2, "dp": 2}, "plan.tp = 2"),
        ({"cp": 2, "dp": 2}, "plan.cp = 2"),
        ({"ep": 3, "model": {"moe": {"experts": 6}}}, "plan.ep = 3"),
        ({"dp": 1, "replicas": [3]}, r"plan.replicas = \[3\]"),
        ({"schedule": "pipedream"}, 'plan.schedule = "pipedream"'),
        ({"sync": {"mode": "local"}}, 'plan.sync.mode = "local"'),
        ({"sync": {"mode": "asp"}}, 'plan.sync.mode = "asp"'),
        ({"sync": {"compress": "top-k"}}, 'plan.sync.compress = "top-k"'),
        ({"sync": {"progress": "thread"}}, 'plan.sync.progress = "thread"'),
        ({"offload": {"optimizer": True}}, "plan.offload"),
        ({"run": {"device": "cuda"}}, 'run.device = "cuda"'),
        ({"emulate": {"slow": {"2": 2.0}}}, "train.emulate.slow"),
        ({"run": {"checkpoint_every": 0}}, "run.checkpoint_every = 0"),
        ({"dp": 5, "batch": 15}, "train.batch = 15 cannot be cut into equal parts for 4 ranks"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_go_on_without_a_rank_is_refused(changes, said):
    with pytest.raises(PlanError, match=said):
        fewer.check(described(**changes))


@pytest.mark.parametrize("plan", ({}, {"dp": 1}, {"zero": 1}, {"zero": 3}, {"accumulate": 2, "microbatches": 2}))
def test_what_can_go_on_is_not(plan):
    fewer.check(described(**plan))
