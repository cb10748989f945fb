"""How gradients are cut into buckets: along parameters, from the end, a small one first and last."""

from __future__ import annotations

import pytest

from hpcpar.forms.data import plan_buckets

SPANS = [(10 * i, 10 * i + 10) for i in range(20)]


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize(
    ("bucket", "first", "want"),
    [
        (200, 60, [(180, 200), (130, 180), (80, 130), (30, 80), (20, 30), (0, 20)]),  # 4 bytes an element: 50 and 15 elements
        (1e9, 60, [(180, 200), (20, 180), (0, 20)]),
        (1e9, 1e9, [(0, 200)]),
        (1, 1, [(10 * i, 10 * i + 10) for i in reversed(range(20))]),
    ],
)
def test_buckets_are_cut_along_parameters(bucket: float, first: float, want: list[tuple[int, int]]) -> None:
    assert plan_buckets(SPANS, 4, bucket, first) == want


@pytest.mark.mpi(sizes=(1,))
def test_little_is_one_bucket_and_nothing_is_none() -> None:
    assert plan_buckets([(0, 5)], 4, 25e6, 1e6) == [(0, 5)] and plan_buckets([], 4, 25e6, 1e6) == []
