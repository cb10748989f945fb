"""A range of a flat array as boxes: every element once, in as few boxes as its rows allow."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.checkpoint import boxes_within
from hpcpar.checkpoint.ranges import boxes_of_range
from hpcpar.nn.parameters import Span

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)


@given(SHAPES, st.data())
def test_boxes_hold_the_range_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = np.arange(size).reshape(shape)
    found = list(boxes_of_range(shape, start, stop))
    values = [whole[slices].reshape(-1) for slices, _, _ in found]
    assert np.array_equal(np.concatenate([np.zeros(0, int), *values]), np.arange(start, stop))
    assert [(a, b) for _, a, b in found] == [(v[0], v[-1] + 1) for v in values]
    assert len(found) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize("cuts", [(20, 33), (0, 24), (23, 24), (24, 30), (0, 40), (17, 17)])
def test_shards_of_several_parameters(cuts: tuple[int, int]) -> None:
    places = {"a": Span(0, 24, (6, 4)), "b": Span(24, 30, (6,)), "c": Span(30, 40, (2, 5))}
    flat, got = np.arange(40), []
    for name, slices, first, last in boxes_within(places, *cuts):
        at = places[name]
        box = flat[at.start : at.stop].reshape(at.shape)[slices].reshape(-1)
        assert np.array_equal(box, flat[first:last])
        got.extend(box)
    assert got == list(range(*cuts))
