"""The arithmetic of shards, volumes and memory: every element once, even shards, and the paper's numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.forms.data import plan_buckets, ring_bytes
from hpcpar.forms.memory import POLICIES, formula, formula_bytes
from hpcpar.forms.zero import Shards, sent


@st.composite
def cuts(draw):
    """Runs of neighbouring spans, one of them perhaps tied, bucket sizes and a number of owners."""
    runs, at = [], 0
    for sizes in draw(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=4)):
        run = []
        for n in sizes:
            run.append((at, at + n))
            at += n
        runs.append(run)
    tied = draw(st.none() | st.sampled_from([span for run in runs for span in run]))
    return runs, tied, draw(st.integers(1, 200)), draw(st.integers(1, 200)), draw(st.integers(1, 7))


@given(cuts())
def test_every_element_has_one_owner_and_pieces_are_even(case):
    runs, tied, most, first, owners = case
    shards = Shards.of(runs, tied, 4, most, first, owners)
    size = runs[-1][-1][1]
    owner_of = [[] for _ in range(size)]
    for r in range(owners):
        places = []
        for piece in shards.pieces(r):
            places += range(piece.at, piece.end)
            for i in range(piece.start, piece.stop):
                owner_of[i].append(r)
        assert places == list(range(shards.size(r)))
    assert all(len(found) == 1 for found in owner_of)
    assert shards.elements == size == sum(shards.size(r) for r in range(owners))
    for mine in shards.counts:
        assert list(mine) == sorted(mine, reverse=True) and max(mine) - min(mine) <= 1


@given(cuts())
def test_buckets_are_filled_from_the_end_and_keep_to_borders(case):
    runs, tied, most, first, owners = case
    shards = Shards.of(runs, tied, 4, most, first, owners)
    assert list(shards.buckets) == sorted(shards.buckets, reverse=True)
    borders = {edge for run in runs for span in run for edge in span}
    assert all(low in borders and high in borders for low, high in shards.buckets)
    for run in runs:
        inside = shards.inside(run[0][0], run[-1][1])
        assert sum(shards.buckets[b][1] - shards.buckets[b][0] for b in inside) == run[-1][1] - run[0][0]  # none reaches across
    for b, (low, high) in enumerate(shards.buckets):
        assert shards.bucket_at(low) == shards.bucket_at(high - 1) == b
    if tied:
        assert tied in shards.buckets


@given(st.integers(1, 1000), st.integers(1, 7), st.integers(0, 50), st.integers(1, 50))
def test_a_tied_weight_is_cut_alike_wherever_it_lies(size, owners, before, behind):
    """On the first stage it comes first, on the last one it is the last."""
    first = Shards.of([[(0, size), (size, size + behind)]], (0, size), 8, 1, 1, owners)
    last = Shards.of([[(0, before), (before, before + size)] if before else [(0, size)]], (before, before + size), 8, 64, 64, owners)
    assert first.counts[first.bucket_at(0)] == last.counts[last.bucket_at(before)]


def test_a_bucket_of_fewer_elements_than_owners_has_empty_pieces():
    shards = Shards.of([[(0, 2), (2, 4)]], None, 4, 1, 1, 4)
    assert shards.buckets == ((2, 4), (0, 2))
    assert shards.counts == ((1, 1, 0, 0), (1, 1, 0, 0))
    assert [shards.size(r) for r in range(4)] == [2, 2, 0, 0]


def test_the_first_bucket_is_smaller():
    spans = [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert plan_buckets(spans, 4, 80, 40) == [(30, 40), (10, 30), (0, 10)]
    assert Shards.of([spans], None, 4, 80, 40, 2).buckets == ((30, 40), (10, 30), (0, 10))
    assert plan_buckets([], 4, 80, 40) == []


@pytest.mark.parametrize("ranks", (1, 2, 3, 7))
@pytest.mark.parametrize("k", (1, 6))
def test_volumes_are_those_of_the_paper(ranks, k):
    psi = 1001
    passes = {0: 2, 1: 2, 2: k + 1, 3: 3 * k}
    for zero, times in passes.items():
        total = sum(ring_bytes(operation, elements, ranks) for operation, elements in sent(zero, psi, k).items())
        assert total == Fraction(times * psi * (ranks - 1), ranks)


def test_memory_is_the_papers_for_mixed_precision_and_adam():
    mixed = POLICIES["float16"].coefficients(states=2)
    assert [formula(mixed, zero) for zero in range(4)] == ["16Ψ", "4Ψ + 12Ψ/N", "2Ψ + 14Ψ/N", "16Ψ/N"]
    # its figure 1: 7.5e9 parameters over 64 ranks, in GB
    assert [round(sum(formula_bytes(mixed, zero, 7_500_000_000, 64).values()) / 1e9, 1) for zero in range(4)] == [120.0, 31.4, 16.6, 1.9]


def test_memory_of_the_types_that_a_run_has():
    assert [formula(POLICIES["float32"].coefficients(2), zero) for zero in range(4)] == ["16Ψ", "8Ψ + 8Ψ/N", "4Ψ + 12Ψ/N", "16Ψ/N"]
    assert [formula(POLICIES["float64"].coefficients(1), zero) for zero in range(4)] == ["24Ψ", "16Ψ + 8Ψ/N", "8Ψ + 16Ψ/N", "24Ψ/N"]
