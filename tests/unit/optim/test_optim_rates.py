"""Learning rates at their corners, and clipping."""

from itertools import pairwise
from math import cos, inf, nan, pi

import pytest

from hpcpar.config import Train
from hpcpar.optim import RATES, coefficient, rate


def make(**more) -> Train:
    return Train(**{"learning_rate": 1.0, "steps": 101, "warmup": 20, "final_rate": 0.1, **more})


def test_warm_up_and_cosine():
    train = make()
    found = [rate(train, s) for s in range(101)]
    assert found[0] == pytest.approx(1 / 21) and found[19] == pytest.approx(20 / 21)
    assert found[20] == 1.0
    assert found[60] == pytest.approx(0.55)  # half way from 20 to 100
    assert found[40] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + cos(pi / 4)))
    assert found[100] == pytest.approx(0.1, rel=1e-15)
    assert all(a < b for a, b in pairwise(found[:21])) and all(a > b for a, b in pairwise(found[20:]))
    assert rate(train, 1000) == found[100]  # a run resumed for longer stays at the end


def test_constant_has_a_warm_up_too():
    train = make(schedule="constant", learning_rate=0.5)
    assert [rate(train, s) for s in (0, 19, 20, 100, 1000)] == pytest.approx([0.5 / 21, 0.5 * 20 / 21, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("steps", "warmup", "expected"),
    [
        (1, 0, [1.0]),
        (2, 0, [1.0, 0.1]),
        (3, 0, [1.0, 0.55, 0.1]),
        (2, 1, [0.5, 1.0, 0.1]),  # the last step is the peak; one more is at the end
        (2, 5, [1 / 6, 2 / 6]),
        (0, 0, [1.0, 0.1]),
    ],
)
def test_corners(steps, warmup, expected):
    train = make(steps=steps, warmup=warmup)
    assert [rate(train, s) for s in range(len(expected))] == pytest.approx(expected)


def test_final_rates_of_nothing_and_all():
    assert rate(make(final_rate=0.0), 100) == pytest.approx(0.0, abs=1e-16)
    assert [rate(make(final_rate=1.0), s) for s in (20, 60, 100)] == [1.0] * 3
    assert set(RATES) == {"cosine", "constant"}


def test_coefficient():
    assert coefficient(2.0, 1.0) == pytest.approx(1 / (2 + 1e-6), rel=1e-15)
    assert coefficient(0.5, 1.0) == 1.0 == coefficient(0.0, 1.0)
    assert coefficient(1.0, 1.0) == pytest.approx(1 / (1 + 1e-6), rel=1e-15)
    assert coefficient(100.0, 0.0) == 1.0  # no clipping
    assert coefficient(inf, 1.0) is None and coefficient(nan, 0.0) is None and coefficient(-inf, 0.0) is None
