"""Weight versions: the formulas of the papers, and what each stage must hold."""

from __future__ import annotations

import itertools

import pytest

from hpcpar.errors import PlanError
from hpcpar.schedule import Kind, check, flow, generate, lower, require_common_version
from hpcpar.schedule.lifetimes import lifetimes

UPDATES = ("lazy", "eager")


def used(schedule) -> dict[tuple[int, int], set[int]]:
    out: dict[tuple[int, int], set[int]] = {}
    for actions in schedule.ranks:
        for a in actions:
            if a.microbatch is not None:
                out.setdefault((a.stage, a.microbatch), set()).add(a.version)
    return out


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_the_version_of_a_microbatch(p, updates):
    m = max(p - 1, 3)
    for (s, k), found in used(generate("pipedream", stages=p, microbatches=19, updates=updates)).items():
        assert found == {max(0, k - (p - 1 - s))}
    for (_, k), found in used(generate("pipedream-vertical", stages=p, microbatches=19, updates=updates)).items():
        assert found == {max(0, k - (p - 1))}
    for (_, k), found in used(generate("pipedream-2bw", stages=p, microbatches=m, batches=5, updates=updates)).items():
        assert found == {max(0, k // m - 1)}


@pytest.mark.parametrize("name", ["pipedream", "pipedream-vertical", "pipedream-2bw"])
def test_a_drain_leaves_one_version_on_all_stages(name):
    for updates, first, count in itertools.product(UPDATES, (0, 5), (1, 2, 8)):
        whole = flow(name, stages=4, group=4, first=first, last=first + count, updates=updates)
        schedule = whole.schedule()
        check(lower(schedule, reduce=True))
        for actions in schedule.ranks:
            made = [a.version for a in actions if a.kind is Kind.U]
            assert made == list(range(first + 1, first + count + 1))
            assert next(a.version for a in actions if a.kind is Kind.F) == first


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_what_a_stage_holds(p):
    def held(name, updates):
        return [(x.weight_versions, x.gradient_buffers) for x in lifetimes(generate(name, stages=p, microbatches=4 * p, updates=updates))]

    for updates in UPDATES:
        assert held("pipedream", updates) == [(p - s, 1) for s in range(p)]
    assert held("pipedream-vertical", "lazy") == [(p - s, s + 1) for s in range(p)]
    assert held("pipedream-vertical", "eager") == [(p, 1)] * p
    assert held("pipedream-2bw", "lazy") == [(2, 2)] * (p - 1) + [(1, 2)]
    assert held("pipedream-2bw", "eager") == [(2, 1)] * p


def test_replicas_name_versions_by_their_minibatches():
    """With r replicas a round makes one version; what a forward uses includes the rounds that its own replica has updated."""
    whole = flow("pipedream", stages=2, first=0, last=11, replicas=(3, 2))
    assert [whole.ahead(s) for s in (0, 1)] == [1, 0]  # PipeDream's warm-up: (5 - 1 - 0) // 3 and (5 - 1 - 3) // 2
    for (s, k), found in used(whole.schedule()).items():
        r, ahead = ((3, 1), (2, 0))[s]
        assert found == {r * max(0, k // r - ahead)}
    assert list(whole.made(0)) == [3, 6, 9, 11] and list(whole.made(1)) == [2, 4, 6, 8, 10, 11]
    assert [whole.ahead(0) for whole in [flow("pipedream", stages=2, first=0, last=1, replicas=(15, 1))]] == [1]


def test_rounds_after_a_drain_start_at_it():
    whole = flow("pipedream", stages=2, first=4, last=9, replicas=(3, 2))
    assert list(whole.made(0)) == [7, 9] and list(whole.made(1)) == [6, 8, 9]
    check(lower(whole.schedule()))


def test_2bw_needs_m_of_at_least_p_minus_1():
    for p in range(2, 8):
        check(lower(generate("pipedream-2bw", stages=p, microbatches=p - 1 or 1, batches=5)))
        if p > 2:
            with pytest.raises(PlanError, match=f"use microbatches >= {p - 1}"):
                generate("pipedream-2bw", stages=p, microbatches=p - 2, batches=5)


def test_plain_stashing_has_no_common_version():
    for clip, tied in ((True, False), (False, True)):
        with pytest.raises(PlanError, match="its own weight version"):
            require_common_version("pipedream", clip=clip, tied=tied)
        for name in ("pipedream-vertical", "pipedream-2bw", "1f1b"):
            require_common_version(name, clip=clip, tied=tied)
    require_common_version("pipedream", clip=False, tied=False)
