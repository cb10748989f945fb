"""Embedding and loss over slices of the vocabulary, put together again: those of the whole, and the kernels those of the array text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpcpar.errors import PlanError
from hpcpar.ops import cross_entropy, embedding, vocabulary
from hpcpar.ops.array import Cost

CUTS = ((0, 11), (0, 5, 11), (0, 1, 2, 11))
TOLERANCE = {"float64": 1e-14, "float32": 3e-6}


def together(logits, labels, edges, scale):
    """Loss and gradient from slices, the sums over ranks done here."""
    parts = [logits[:, a:b].copy() for a, b in itertools.pairwise(edges)]
    top = np.maximum.reduce([vocabulary.largest(p) for p in parts])
    target = sum(vocabulary.targets(p, labels, a, 11) for p, a in zip(parts, edges, strict=False))
    total = sum(vocabulary.totals(p, top) for p in parts)
    loss, lse = vocabulary.loss(top, total, target, labels)
    return loss, np.concatenate([vocabulary.backward_input(scale, (p, lse, labels, a)) for p, a in zip(parts, edges, strict=False)], axis=1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("edges", CUTS)
@pytest.mark.parametrize("spread", (1.0, 400.0))
def test_slices_make_the_whole_loss(edges, spread, dtype):
    draw = np.random.default_rng(2)
    logits, labels = (spread * draw.standard_normal((12, 11))).astype(dtype), np.arange(-1, 11, dtype=np.int32)
    want, saved = cross_entropy.forward(logits.copy(), labels)
    dwant = cross_entropy.backward_input(0.3, saved)
    loss, dlogits = together(logits, labels, edges, 0.3)
    assert loss == pytest.approx(want, rel=TOLERANCE[dtype])
    assert dlogits.dtype == logits.dtype and np.abs(dlogits - dwant).max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kernels_are_the_array_text(dtype):
    draw = np.random.default_rng(3)
    logits, labels = (3 * draw.standard_normal((9, 1030))).astype(dtype), draw.integers(-1, 2000, 9).astype(np.int32)
    top, lse = vocabulary.largest(logits) + 1, np.full(9, 9.0)
    assert np.allclose(vocabulary.totals(logits, top), vocabulary.totals_array(logits, top), rtol=TOLERANCE[dtype])
    a, b = (f(0.3, (logits.copy(), lse, labels, 500)) for f in (vocabulary.backward_input, vocabulary.backward_array))
    assert np.abs(a - b).max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("edges", CUTS)
def test_slices_make_the_whole_embedding(edges):
    draw = np.random.default_rng(4)
    tokens, ids, dx = draw.standard_normal((11, 3)), np.array([0, 10, 3, 3, 1, 10], np.int32), draw.standard_normal((6, 3))
    want = np.empty_like(tokens)
    embedding.backward_weight((ids[None], dx), want)
    spans = list(itertools.pairwise(edges))
    assert np.array_equal(sum(vocabulary.lookup(ids, tokens[a:b], a, 11) for a, b in spans), tokens[ids])
    for a, b in spans:
        got = np.ones((b - a, 3))
        vocabulary.lookup_weight(ids, dx, got, a)
        assert np.array_equal(got, want[a:b])
        vocabulary.lookup_weight(ids, dx, got, a, add=True)
        assert np.array_equal(got, 2 * want[a:b])


def test_what_no_slice_holds_is_refused():
    tokens, logits = np.zeros((5, 3)), np.zeros((2, 5))
    for ids in ([0, 11], [-1, 0]):
        with pytest.raises(PlanError, match="do not fit vocabulary = 11"):
            vocabulary.lookup(np.array(ids), tokens, 0, 11)
    with pytest.raises(PlanError, match="labels from 0 to 11"):
        vocabulary.targets(logits, np.array([0, 11]), 0, 11)


def test_cost_is_that_of_the_slice():
    assert vocabulary.cost("F", 7, 5).flops == 12 * 35 and vocabulary.cost("W", 7, 5) == Cost(0, 0)
