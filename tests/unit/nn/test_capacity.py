"""Capacity and drops, worked out by hand for each policy and order."""

from __future__ import annotations

from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hpcpar.config import Capacity
from hpcpar.nn.gates import capacity
from hpcpar.nn.gates.choice import Choice, ranked, wanted

# S tokens, E experts, k choices, factor: what each policy gives, by hand
BY_HAND = {
    # 6.25; 7; max(min(10, 3), 4); 1.25 x 2 x 10 / 4 = 6.25; max(7, 4); 6.25 up; 2 x int(1.25 x 3)
    (10, 4, 2, 1.25): {"floor": 6, "ceil": 7, "mesh": 4, "gshard": 6, "deepspeed": 7, "megatron": 7, "tutel": 6},
    # fewer tokens than experts: 0.375; 1; max(min(3, 0), 4); 0.75; max(1, 4); 1; int(1 x 1)
    (3, 8, 1, 1.0): {"floor": 0, "ceil": 1, "mesh": 4, "gshard": 0, "deepspeed": 4, "megatron": 1, "tutel": 1},
    # 110 exactly; in floating point 100 x 1.1 is a little more, which rounds up to 111
    (100, 1, 1, 1.1): {"floor": 110, "ceil": 110, "mesh": 100, "gshard": 220, "deepspeed": 111, "megatron": 111, "tutel": 110},
    # 1024 tokens, 64 experts: 16 x 2 x 1.25
    (1024, 64, 2, 1.25): {"floor": 40, "ceil": 40, "mesh": 20, "gshard": 40, "deepspeed": 40, "megatron": 40, "tutel": 40},
    (7, 3, 2, 0.5): {"floor": 2, "ceil": 3, "mesh": 4, "gshard": 2, "deepspeed": 4, "megatron": 3, "tutel": 2},
}


@pytest.mark.parametrize("case", BY_HAND, ids=str)
def test_capacity_by_hand(case):
    s, e, k, factor = case
    assert {name: policy(s, e, k, factor, None) for name, policy in capacity.POLICIES.items()} == BY_HAND[case]


def test_limits():
    assert capacity.limit(Capacity(policy="mesh", factor=1.0), 3, 8, 1) == 3, "no more than there are tokens"
    assert capacity.limit(Capacity(policy="mesh", factor=1.0, minimum=0), 3, 8, 1) == 0
    assert capacity.limit(Capacity(policy="megatron", factor=1.0, minimum=5), 100, 50, 1) == 5
    both = Capacity(policy="ceil", factor=1.0, evaluation=2.0)
    assert capacity.limit(both, 16, 4, 1) == 4 and capacity.limit(both, 16, 4, 1, training=False) == 8
    assert set(capacity.POLICIES) == set(get_args(get_type_hints(Capacity)["policy"]))


# Six tokens, three experts, two choices each; an expert takes two.
FIRST = [0, 0, 0, 1, 1, 2]
SECOND = [1, 1, 2, 0, 2, 1]


def choice(skipped=None, scores=None):
    order = np.full((1, 6, 3), 2, np.int16)
    for n in range(6):
        order[0, n, FIRST[n]], order[0, n, SECOND[n]] = 0, 1
    return Choice(np.zeros((1, 6, 3)) if scores is None else scores, order, skipped, ())


def pairs(keep):
    return {(int(n), int(e)) for _, n, e in np.argwhere(keep)}


def test_drops_by_position():
    """Expert 0 is full after tokens 0 and 1, expert 1 after 3 and 4; expert 2 has token 5, and token 2's second choice its other place."""
    c = choice()
    keep = capacity.by_position(c, wanted(c, 2), 2, 2, hold=True)
    assert pairs(keep) == {(0, 0), (1, 0), (3, 1), (4, 1), (5, 2), (2, 2)}


@pytest.mark.parametrize("hold, kept", [(True, set()), (False, {(4, 2)})])
def test_a_choice_that_chance_leaves_out_holds_its_place_or_not(hold, kept):
    """Token 2's second choice is left out: its place in expert 2 stays empty (GShard), or token 4 gets it (Mesh)."""
    skipped = np.zeros((1, 6, 3), bool)
    skipped[0, 2, 2] = True
    c = choice(skipped)
    assert pairs(capacity.by_position(c, wanted(c, 2), 2, 2, hold)) == {(0, 0), (1, 0), (3, 1), (4, 1), (5, 2)} | kept


def test_drops_by_probability():
    """The two largest of each column; of equal ones the earlier token."""
    scores = np.zeros((1, 6, 3))
    scores[0, :, 0] = [0.5, 0.6, 0.7, 0.6, 0.0, 0.0]  # tokens 0, 1, 2, 3 want expert 0: 2, then 1 before 3
    scores[0, :, 1] = [0.2, 0.4, 0.0, 0.4, 0.4, 0.4]  # tokens 0, 1, 3, 4, 5: 1, then 3
    scores[0, :, 2] = [0.9, 0.9, 0.3, 0.9, 0.4, 0.1]  # tokens 2, 4, 5: 4, then 2; others do not want it
    c = choice(scores=scores)
    assert pairs(capacity.by_priority(scores, wanted(c, 2), 2)) == {(2, 0), (1, 0), (1, 1), (3, 1), (4, 2), (2, 2)}
    every = {(n, e) for e, of in enumerate(([0, 1, 2, 3], [1, 3, 4, 5], [2, 4, 5])) for n in of}
    assert pairs(capacity.by_priority(scores, wanted(c, 2), 4)) == every, "an expert that few want takes no other"


def test_ranks_of_equal_scores_are_those_of_the_experts():
    assert ranked(np.array([[[0.1, 0.5, 0.1, 0.3], [1.0, 1.0, 1.0, 1.0]]])).tolist() == [[[2, 0, 3, 1], [0, 1, 2, 3]]]


@settings(max_examples=80, deadline=None)
@given(some.integers(1, 30), some.integers(1, 6), some.data())
def test_mesh_and_deepspeed_drop_the_same(tokens, experts, data):
    """They number second choices behind the kept (Mesh) or all (DeepSpeed) first ones: other numbers, the same drops, written naively."""
    k = data.draw(some.integers(1, experts))
    most = data.draw(some.integers(0, tokens))
    order = ranked(np.random.default_rng(data.draw(some.integers(0, 1000))).normal(size=(2, tokens, experts)))
    c = Choice(None, order, None, ())
    ours = capacity.by_position(c, wanted(c, k), k, most, True)
    for kept_alone in (True, False):
        naive = np.zeros_like(ours)
        for g in range(2):
            for e in range(experts):
                before = 0
                for j in range(k):
                    place = before
                    for n in range(tokens):
                        if order[g, n, e] == j:
                            naive[g, n, e] = place < most
                            place += 1
                    before = min(place, most) if kept_alone else place
        assert np.array_equal(ours, naive)
