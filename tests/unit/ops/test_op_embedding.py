"""The embedding: naive loops, finite differences, every order of equal ids."""

import numpy as np
import pytest
from op_checks import differences, distance

from hpcpar.errors import PlanError
from hpcpar.ops import embedding


def loop(ids, dx, vocabulary):
    d = np.zeros((vocabulary, dx.shape[1]), dx.dtype)
    for i, row in zip(ids.reshape(-1), dx, strict=True):
        d[i] += row
    return d


@pytest.mark.parametrize("b,t,d,v", [(3, 5, 4, 7), (1, 1, 3, 1), (2, 33, 2, 7)])
@pytest.mark.parametrize("learned", [True, False])
def test_gradients(random, b, t, d, v, learned):
    ids, tokens, dx = random.integers(0, v, (b, t)), random.standard_normal((v, d)), random.standard_normal((b * t, d))
    positions = random.standard_normal((t, d)) if learned else None
    x, saved = embedding.forward(ids, tokens, positions)
    assert np.array_equal(x.reshape(b, t, d), tokens[ids] + (positions if learned else 0))
    dtokens, dpositions = np.full_like(tokens, np.nan), np.full((t, d), np.nan) if learned else None
    embedding.backward_weight((saved, dx), dtokens, dpositions, add=False)
    pairs = [(tokens, dtokens)] + ([(positions, dpositions)] if learned else [])
    differences(lambda: float((embedding.forward(ids, tokens, positions)[0] * dx).sum()), pairs, random)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16])
@pytest.mark.parametrize("ids", ["random", "all the same", "all different", "one"])
def test_rows_are_added_in_the_order_of_a_loop(random, dtype, kind, ids):
    found = {
        "random": random.integers(0, 7, (3, 33)),
        "all the same": np.full((3, 33), 4),
        "all different": random.permutation(99).reshape(3, 33),
        "one": np.array([[2]]),
    }[ids].astype(kind)
    dx = random.standard_normal((found.size, 5)).astype(dtype)
    expected = loop(found, dx, 99)
    dtokens = np.ones((99, 5), dtype)
    embedding.backward_weight((found, dx), dtokens, None, add=False)
    assert np.array_equal(dtokens, expected)
    tree, before = np.zeros((99, 5), dtype), dx.copy()
    embedding.scatter_add_array(found.reshape(-1), dx, tree)
    assert distance(tree, expected) < (1e-14 if dtype == np.float64 else 1e-5) and np.array_equal(dx, before)
    embedding.backward_weight((found, dx), dtokens, None, add=True)
    assert distance(dtokens, 2 * expected.astype(np.float64)) < (1e-14 if dtype == np.float64 else 1e-5)


def test_views_and_no_rows(random):
    ids = random.integers(0, 5, (6, 8))
    tokens, positions = random.standard_normal((5, 8))[:, ::2], random.standard_normal((8, 4))
    x, saved = embedding.forward(ids[::2, ::2], tokens, positions[::2])
    assert np.array_equal(x.reshape(3, 4, 4), tokens[ids[::2, ::2]] + positions[::2])
    wide = np.zeros((5, 8))
    embedding.backward_weight((saved, x), wide[:, ::2], None, add=True)
    assert distance(wide[:, ::2], loop(saved, x, 5)) < 1e-14 and not wide[:, 1::2].any()
    empty, none = embedding.forward(np.zeros((0, 4), int), tokens, positions[::2])
    dtokens = np.ones((5, 4))
    embedding.backward_weight((none, empty), dtokens, None, add=False)
    assert empty.shape == (0, 4) and not dtokens.any()


@pytest.mark.parametrize("bad", [-1, 7])
@pytest.mark.parametrize("learned", [True, False])
def test_ids_outside_the_vocabulary_are_refused(bad, learned):
    ids = np.array([[0, bad]])
    with pytest.raises(PlanError, match=f"{bad}.*vocabulary = 7"):
        embedding.forward(ids, np.ones((7, 2)), np.ones((2, 2)) if learned else None)
    with pytest.raises(PlanError, match="vocabulary = 7"):
        embedding.backward_weight((ids, np.ones((2, 2))), np.ones((7, 2)), None, add=False)
    with pytest.raises(ValueError, match="do not fit"):
        embedding.forward(np.zeros((1, 3), int), np.ones((7, 2)), np.ones((2, 2)))
