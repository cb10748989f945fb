"""Context parallelism as arithmetic: the blocks cover the causal scores once, the work is even or not, and messages meet their partners."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hpcpar.errors import PlanError
from hpcpar.forms.context import (
    FORMS,
    RING,
    Sizes,
    blocks,
    check,
    heads_of,
    length,
    messages,
    reach,
    runs,
    shares,
    work,
)

CUTS = [(13, 1), (13, 2), (13, 3), (13, 4), (16, 4), (64, 8), (5, 4), (4, 4), (7, 5), (3, 3), (2, 2)]


def held(form, t, n, r):
    return np.concatenate([np.arange(run.start, run.stop) for run in runs(form, t, n, r)])


@pytest.mark.parametrize("t,n", CUTS)
@pytest.mark.parametrize("form", FORMS)
def test_every_position_is_held_once_in_ascending_order(form, t, n):
    mine = [held(form, t, n, r) for r in range(n)]
    assert all(len(m) and (np.diff(m) > 0).all() for m in mine)
    assert sorted(np.concatenate(mine)) == list(range(t))
    assert [length(runs(form, t, n, r)) for r in range(n)] == [len(m) for m in mine]


@pytest.mark.parametrize("t,n", CUTS)
@pytest.mark.parametrize("form", RING)
def test_blocks_are_the_causal_scores_once(form, t, n):
    seen = np.zeros((t, t), int)
    for r in range(n):
        mine, every = held(form, t, n, r), blocks(form, t, n, r)
        for step, b in enumerate(every):
            assert b.source == (r - step) % n and b.causal == (step == 0)
            rows, columns = mine[b.rows], held(form, t, n, b.source)[b.columns]
            part = np.ones((len(rows), len(columns)), int)
            part = np.tril(part) if b.causal else part
            assert part.sum() == b.scores
            seen[np.ix_(rows, columns)] += part
        assert sum(b.scores for b in every) == work(form, t, 1, 1, n, r)
    assert np.array_equal(seen, np.tril(np.ones((t, t), int)))


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_zig_zag_evens_out_the_work_of_the_ring(n):
    t = 6 * n
    by = {form: [work(form, t, 4, 2, n, r) for r in range(n)] for form in FORMS}
    whole = 4 * t * (t + 1) // 2
    assert all(sum(w) == whole for form, w in by.items() if form != "ulysses")
    assert len(set(by["zig-zag"])) == len(set(by["gather"])) == 1
    side = t // n
    assert by["ring"] == [4 * (side * side * r + side * (side + 1) // 2) for r in range(n)]


@settings(max_examples=100, deadline=None)
@given(some.integers(1, 6), some.integers(1, 4), some.integers(1, 8))
def test_heads_of_ulysses(groups, many, ranks):
    heads = groups * many
    if heads < ranks:
        return
    every = [heads_of(heads, groups, ranks, r) for r in range(ranks)]
    assert [h for q, _ in every for h in range(q.start, q.stop)] == list(range(heads))
    assert sum(work("ulysses", 7, heads, groups, ranks, r) for r in range(ranks)) == heads * 28
    for r, (q, kv) in enumerate(every):
        pieces = [(h + q.start, g + kv.start) for a, b in shares(heads, groups, ranks, r) for h, g in _pairs(a, b)]
        assert pieces == [(h, h // many) for h in range(q.start, q.stop)], "each head reads its own group"
        assert kv.stop - kv.start <= max(1, q.stop - q.start)
    if groups >= ranks:
        assert [g for _, kv in every for g in range(kv.start, kv.stop)] == list(range(groups)), "none twice"


def _pairs(heads, groups):
    many, rest = divmod(heads.stop - heads.start, groups.stop - groups.start)
    assert not rest
    return [(h, groups.start + (h - heads.start) // many) for h in range(heads.start, heads.stop)]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("t,n", CUTS)
@pytest.mark.parametrize("form", RING)
def test_every_send_meets_its_receive(form, t, n, backward):
    sends, receives = {}, {}
    for r in range(n):
        for m in messages(form, Sizes(2, t, 6, 3, 4, n), r, backward):
            into, key = (sends, (r, m.peer)) if m.kind == "send" else (receives, (m.peer, r))
            into.setdefault((*key, m.operation), []).append(m.elements)
    assert {k: Counter(v) for k, v in sends.items()} == {k: Counter(v) for k, v in receives.items()}
    assert all(a != b for a, b, _ in sends)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_volumes_are_the_closed_forms(n):
    b, s, h, g, k = 2, 8 * n, 8, 8, 3
    at, block = Sizes(b, s, h, g, k, n), 2 * b * (s // n) * g * k

    def sent(form, backward, operation):
        ranks = [messages(form, at, r, backward) for r in range(n)]
        return sum(m.elements for every in ranks for m in every if m.kind != "receive" and m.operation == operation)

    for backward in (False, True):
        assert sent("zig-zag", backward, "keys_values") == n * (n - 1) * block, "N - 1 hops of each rank's keys and values"
        assert sent("ring", backward, "keys_values") == n * (n - 1) // 2 * block, "as far as a later row needs them"
        assert sent("gather", backward, "keys_values") == n * n * block
    assert sent("zig-zag", True, "keys_values_gradient") == (n * n if n > 1 else 0) * block, "and one hop more, home"
    assert sent("ring", True, "keys_values_gradient") == (n * (n - 1) // 2 + n - 1) * block
    if h % n == 0:
        for r in range(n):
            for backward in (False, True):
                total = sum(m.elements for m in messages("ulysses", at, r, backward))
                assert total * n * n == 4 * b * s * h * k * (n - 1), "4 b s h / P (P - 1) / P each way"


def test_a_block_of_a_contiguous_cut_goes_no_further_than_it_is_needed():
    assert [reach("ring", 4, r) for r in range(4)] == [4, 3, 2, 1]
    assert [reach("zig-zag", 4, r) for r in range(4)] == [4] * 4


def test_what_cannot_be_cut_is_refused_with_the_remedy():
    for form in FORMS:
        with pytest.raises(PlanError, match=r"model.context = 3 .* plan.cp = 4 .* plan.cp <= 3"):
            check(form, 3, 8, 4)
        check(form, 4, 4, 4)
    with pytest.raises(PlanError, match=r"model.heads = 3 .* plan.cp = 4 .* plan.cp <= 3.*zig-zag"):
        check("ulysses", 16, 3, 4)
    check("zig-zag", 16, 3, 4)
