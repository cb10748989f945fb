"""Update rules against scalar textbooks, and the same bits however the flat buffer is cut."""

from itertools import pairwise
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcpar.optim
from hpcpar.config import Model, Train
from hpcpar.nn import describe
from hpcpar.optim import OPTIMIZERS, SGD, AdamW, Segment, segments_of, within

N = 37
RULES = {"adamw": AdamW(0.9, 0.95, 1e-8, 0.1), "sgd": SGD(0.9, 0.1)}
SEGMENTS = [Segment(0, 10, True), Segment(10, 11, False), Segment(11, 30, True), Segment(30, 37, False)]


def gradients(steps: int, dtype: str, n: int = N) -> np.ndarray:
    """(steps, n) gradients of all magnitudes, some of them zero."""
    rng = np.random.default_rng(5)
    g = rng.normal(size=(steps, n)) * 10.0 ** rng.integers(-6, 4, (steps, n))
    g[:, 3] = 0.0
    g[1, 4] = 0.0
    return g.astype(dtype)


def start(dtype: str, n: int = N) -> np.ndarray:
    return np.random.default_rng(6).normal(size=n).astype(dtype)


def run(rule, w, g, segments, lr=0.01, scale=0.5):
    """All updates in place on w; returns the state."""
    state = rule.state(w.size, np, w.dtype)
    for t, row in enumerate(g, 1):
        rule.step(w, row.copy(), state, segments, t, lr * t, scale)
    return state


def test_adamw_is_the_textbook():
    w, g = start("float64"), gradients(6, "float64")
    expected = []
    for i in range(N):
        x, m, v = float(w[i]), 0.0, 0.0
        decay = 0.1 if i not in (10, *range(30, 37)) else 0.0
        for t in range(1, 7):
            gradient, lr = 0.5 * float(g[t - 1, i]), 0.01 * t
            x -= lr * decay * x  # decoupled: neither m nor v sees it
            m = 0.9 * m + (1 - 0.9) * gradient
            v = 0.95 * v + (1 - 0.95) * gradient**2
            x -= lr * (m / (1 - 0.9**t)) / (sqrt(v / (1 - 0.95**t)) + 1e-8)
        expected.append((x, m, v))
    state = run(RULES["adamw"], w, g, SEGMENTS)
    assert np.allclose(np.stack([w, state["m"], state["v"]], 1), expected, rtol=1e-13, atol=1e-15)
    assert set(state) == set(AdamW.names)


def test_sgd_is_the_textbook():
    w, g = start("float64"), gradients(6, "float64")
    expected = []
    for i in range(N):
        x, m = float(w[i]), 0.0
        decay = 0.1 if i not in (10, *range(30, 37)) else 0.0
        for t in range(1, 7):
            lr = 0.01 * t
            m = 0.9 * m + 0.5 * float(g[t - 1, i])
            x = x - lr * decay * x - lr * m  # decoupled: the momentum does not see it
        expected.append((x, m))
    state = run(RULES["sgd"], w, g, SEGMENTS)
    assert np.allclose(np.stack([w, state["momentum"]], 1), expected, rtol=1e-13, atol=1e-15)
    assert set(state) == set(SGD.names)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_gradient_only_decayed_segments_move(name):
    w = start("float64")
    before = w.copy()
    run(RULES[name], w, np.zeros((1, N)), SEGMENTS)
    for a, b, decay in SEGMENTS:
        assert np.allclose(w[a:b], before[a:b] * (1 - 0.01 * 0.1) if decay else before[a:b], rtol=1e-15, atol=0)
    state = RULES[name].state(N, np, "float64")
    assert all(not values.any() and values.shape == (N,) for values in state.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_no_segment_holds_is_left_alone(name):
    w = start("float32")
    before = w.copy()
    state = run(RULES[name], w, gradients(3, "float32"), [Segment(5, 9, True), Segment(20, 21, False)])
    untouched = np.ones(N, bool)
    untouched[[*range(5, 9), 20]] = False
    assert np.array_equal(w[untouched], before[untouched]) and (w[~untouched] != before[~untouched]).all()
    assert all(not values[untouched].any() for values in state.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(0, 301), max_size=6), offset=st.integers(0, 16))
def test_bits_do_not_depend_on_the_cut(name, dtype, cuts, offset):
    """Whole, and in shards of odd sizes at odd addresses: vector bodies and remainders of loops must round alike."""
    n, rule = 301, RULES[name]
    segments = [Segment(0, 130, True), Segment(130, 137, False), Segment(137, 301, True)]
    g = gradients(3, dtype, n)
    whole = start(dtype, n)
    state = run(rule, whole, g, segments)
    edges = sorted({0, n, *cuts})
    for a, b in pairwise(edges):
        memory = np.zeros(offset + b - a, dtype)
        shard = memory[offset:]
        shard[:] = start(dtype, n)[a:b]
        mine = run(rule, shard, g[:, a:b], within(segments, a, b))
        assert np.array_equal(shard, whole[a:b])
        assert all(np.array_equal(mine[k], state[k][a:b]) for k in state)
        assert shard.dtype == np.dtype(dtype) and all(x.dtype == np.dtype(dtype) for x in mine.values())


def test_segments_of_a_model_follow_its_parameters():
    layer = describe.layers(Model(layers=1, width=8, heads=2, vocabulary=256, context=4))[1]
    found = segments_of(layer.parameters)
    flags = np.concatenate([np.full(p.size, p.decay) for p in layer.parameters])
    assert found[0].start == 0 and found[-1].stop == layer.size
    assert all(a.stop == b.start and a.decay != b.decay for a, b in pairwise(found))
    assert all((flags[s.start : s.stop] == s.decay).all() for s in found)
    assert {p.decay for p in layer.parameters if p.name.endswith((".gain", ".bias"))} == {False}
    for a, b in [(0, layer.size), (3, 100), (7, 8), (50, 50)]:
        again = [s for part in within(found, a, b) for s in [part.decay] * (part.stop - part.start)]
        assert again == flags[a:b].tolist()


def test_every_rule_is_in_the_registry_and_made_from_a_description():
    rules = {p.stem for p in Path(hpcpar.optim.__file__).parent.glob("*.py") if "def step(" in p.read_text()}
    assert rules == set(OPTIMIZERS)
    train = Train(beta1=0.8, beta2=0.7, epsilon=1e-5, weight_decay=0.3, momentum=0.6)
    assert OPTIMIZERS["adamw"].of(train) == AdamW(0.8, 0.7, 1e-5, 0.3)
    assert OPTIMIZERS["sgd"].of(train) == SGD(0.6, 0.3)
