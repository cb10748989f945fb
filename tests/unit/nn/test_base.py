"""Balanced assignment: the best there is, by trying all, and by the absence of any move that would gain."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from layer_of_experts import OneLayer

from hpcpar.nn.context import Microbatch
from hpcpar.nn.gates.base import assign


def total(z, of):
    return float(z[np.arange(len(z)), of].sum())


@pytest.mark.parametrize("tokens, experts", [(1, 1), (1, 3), (3, 3), (4, 2), (5, 2), (6, 3), (7, 3), (3, 5)])
def test_the_best_of_all_assignments(tokens, experts):
    draw = np.random.default_rng(10 * tokens + experts)
    every = [np.array(of) for of in product(range(experts), repeat=tokens)]
    every = [of for of in every if np.bincount(of).max() <= -(-tokens // experts)]
    for _ in range(20):
        z = draw.normal(size=(tokens, experts)) + draw.normal(0, 3, experts)
        of = assign(z)
        assert np.bincount(of).max() <= -(-tokens // experts)
        assert total(z, of) == pytest.approx(max(total(z, other) for other in every), abs=1e-9)


def test_by_hand():
    """Both want expert 0; token 0 would lose 1 by moving, token 1 loses 3. Of equal losses the earlier token moves."""
    assert assign(np.array([[5.0, 4.0], [5.0, 2.0]])).tolist() == [1, 0]
    assert assign(np.array([[5.0, 4.0], [5.0, 4.0]])).tolist() == [1, 0]
    # three want expert 0 and two expert 1, which is full: token 0 loses 2 there, and token 3 loses 1 by making room; to 2 it would lose 9
    z = np.array([[9.0, 7.0, 0.0], [9.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 9.0, 8.0], [0.0, 9.0, 1.0]])
    assert assign(z).tolist() == [1, 0, 0, 2, 1], "a chain: token 0 to expert 1, whose token 3 goes on to expert 2"


@settings(max_examples=40, deadline=None)
@given(some.integers(1, 60), some.integers(1, 9), some.sampled_from([0.0, 1.0, 1e6, 1e-6]), some.integers(0, 10**6))
def test_no_cycle_of_moves_gains(tokens, experts, skew, seed):
    """The law of optimal flows: no cycle of tokens that change places, and no chain into an expert with room, has a negative cost."""
    draw = np.random.default_rng(seed)
    z = draw.integers(-4, 5, size=(tokens, experts)) + skew * draw.normal(size=experts)  # many ties
    of, most = assign(z), -(-tokens // experts)
    load = np.bincount(of, minlength=experts)
    assert load.max() <= most
    way = np.full((experts, experts), np.inf)
    for n in range(tokens):
        way[of[n]] = np.minimum(way[of[n]], z[n, of[n]] - z[n])
    for c in range(experts):  # Floyd and Warshall
        way = np.minimum(way, way[:, c : c + 1] + way[c : c + 1])
    tiny = -1e-9 * max(1.0, np.abs(z).max())
    assert (np.diag(way) >= tiny).all() and (way[:, load < most] >= tiny).all()


def test_scores_that_diverge_are_still_assigned():
    for wild in (np.nan, np.inf, -np.inf):
        of = assign(np.where(np.arange(3) == 0, wild, np.ones((4, 3))))
        assert np.bincount(of).max() <= 2, wild


def test_training_is_even_and_evaluation_is_greedy():
    one = OneLayer({"gate": "base", "k": 1, "group": 2})  # groups of 8 tokens, 5 experts: 2 at most
    routing = one.routing()
    assert (routing.keep.sum(axis=1) <= 2).all() and (routing.keep.sum(axis=2) == 1).all()
    z = routing.z.reshape(16, 5)
    s = 1 / (1 + np.exp(-z[routing.tokens, routing.experts]))
    assert np.abs(routing.weights - s).max() < 1e-15
    one.at = Microbatch(one.frame, 4, 4, 2, 3, training=False)
    free = one.routing()
    assert np.array_equal(free.experts[np.argsort(free.tokens)], z.argmax(axis=1))
    assert max(free.counts) > 4, "without training there is no limit"
