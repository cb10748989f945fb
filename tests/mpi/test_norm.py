"""The gradient norm: squares added in name order, and never finite where a gradient is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcpar.parallel.norm import Shares, gradient_norm, norm_of


@pytest.mark.mpi(sizes=(1,))
def test_squares_are_added_in_name_order():
    squares = np.array([1.0, 1e16, 1.0, 1.0])
    total = ((1.0 + 1e16) + 1.0) + 1.0
    assert total != 1e16 + (1.0 + 1.0 + 1.0)  # the order shows
    assert norm_of(squares) == total**0.5
    assert norm_of(np.zeros(0)) == 0.0
    assert norm_of(np.array([9.0, 16.0])) == 5.0
    assert norm_of(np.array([math.inf, 1.0])) == norm_of(np.array([math.nan, 1.0])) == math.inf


@pytest.mark.mpi(sizes=(1,))
def test_a_parameter_that_another_rank_counts_adds_nothing():
    assert gradient_norm(["a", "b"], {"b": np.array([[3.0], [4.0]])}, None) == 5.0


@pytest.mark.mpi(sizes=(3, 4))
def test_pieces_of_experts_are_added_in_their_order(world):
    """Whatever the order in which MPI adds: replicas in groups of other ranks then find the same bits."""
    rounded = np.float64(2.0**53)  # to which 1 adds nothing, and 2 does
    for big in range(world.size):
        squares = [rounded if r == big else 1.0 for r in range(world.size)]
        mine = {"a": [np.array([squares[world.rank] ** 0.5])]}
        total = 0.0
        for square in squares:
            total += square**0.5 * square**0.5
        assert gradient_norm(["a"], mine, world, (world.rank, world.size)) == total**0.5


@pytest.mark.mpi(sizes=(2, 3, 4))
def test_shares_of_one_parameter_add_to_the_same_bits_on_all_ranks(world):
    every = [np.random.Generator(np.random.Philox(key=[9, r])).random(500) for r in range(world.size)]
    want = every[0]
    for other in every[1:]:
        want = want + other
    assert np.array_equal(Shares(world, every[world.rank], world, 0).finish(), want)
