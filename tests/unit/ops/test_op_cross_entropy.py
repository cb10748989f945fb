"""Softmax cross-entropy: finite differences, twins, hard logits, ignored labels."""

import numpy as np
import pytest
from op_checks import differences, distance, same_rows

from hpcpar.errors import PlanError
from hpcpar.ops import cross_entropy


def exact(logits, labels):
    """The sum of losses and its gradient in extended precision."""
    x = logits.astype(np.longdouble)
    top = x.max(1, keepdims=True)
    e = np.exp(x - top)
    lse = top[:, 0] + np.log(e.sum(1))
    counted, rows = labels >= 0, np.arange(len(labels))
    d = e / e.sum(1, keepdims=True)
    d[rows, np.where(counted, labels, 0)] -= 1
    return float(((lse - x[rows, np.where(counted, labels, 0)]) * counted).sum()), (d * counted[:, None]).astype(np.float64)


@pytest.mark.parametrize("n,v", [(15, 7), (1, 7), (3, 1), (33, 65)])
def test_gradients(random, n, v):
    logits, labels = 2 * random.standard_normal((n, v)), random.integers(-1, v, n).astype(np.int32)
    loss, saved = cross_entropy.forward(logits.copy(), labels)
    assert isinstance(loss, float)
    d = cross_entropy.backward_input(0.37, saved)
    differences(lambda: 0.37 * cross_entropy.forward(logits, labels)[0], [(logits, d)], random)


@pytest.mark.parametrize("dtype,limit", [(np.float64, 1e-14), (np.float32, 1e-6)])
@pytest.mark.parametrize("n,v", [(1, 1), (9, 7), (4, 511), (3, 512), (3, 513), (2, 5000)])
def test_both_twins_are_exact(random, n, v, dtype, limit):
    logits, labels = (5 * random.standard_normal((n, v))).astype(dtype), random.integers(-1, v, n).astype(np.int32)
    loss, gradient = exact(logits, labels)
    for forward, backward in (
        (cross_entropy.forward, cross_entropy.backward_input),
        (cross_entropy.forward_array, cross_entropy.backward_array),
    ):
        memory = logits.copy()
        got, saved = forward(memory, labels)
        assert np.array_equal(memory, logits) and saved[1].dtype == np.float64
        assert abs(got - loss) <= limit * max(1, abs(loss))
        d = backward(2.5, saved)
        assert d.dtype == dtype and np.abs(d - 2.5 * gradient).max() < 5 * limit and np.shares_memory(d, memory)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_logits(dtype):
    logits = np.zeros((6, 5), dtype)
    logits[0, 2], logits[1, 2], logits[2] = 1e4, -1e4, 1e4
    logits[3], logits[4] = -1e4, [1e4, -1e4, 0, 1e4 - 1, 3]
    logits[5, 1:] = -np.finfo(dtype).max
    labels = np.array([2, 2, 0, 4, 1, 0], np.int32)
    loss, gradient = exact(logits, labels)
    for forward, backward in (
        (cross_entropy.forward, cross_entropy.backward_input),
        (cross_entropy.forward_array, cross_entropy.backward_array),
    ):
        got, saved = forward(logits.copy(), labels)
        assert abs(got - loss) < 1e-6 * loss and np.abs(backward(1.0, saved) - gradient).max() < 1e-6


def test_large_logits_keep_their_probabilities(random):
    logits = (random.standard_normal((4, 9)) + 10_000).astype(np.float32)
    labels = np.zeros(4, np.int32)
    _, gradient = exact(logits, labels)
    assert np.abs(cross_entropy.backward_input(1.0, cross_entropy.forward(logits.copy(), labels)[1]) - gradient).max() < 1e-6


def test_all_ignored(random):
    logits, labels = random.standard_normal((5, 7)), np.full(5, -1, np.int32)
    for forward, backward in (
        (cross_entropy.forward, cross_entropy.backward_input),
        (cross_entropy.forward_array, cross_entropy.backward_array),
    ):
        loss, saved = forward(logits.copy(), labels)
        assert loss == 0 and not backward(1.0, saved).any()
        assert forward(logits[:0], labels[:0])[0] == 0


def test_gradient_rows_sum_to_zero(random):
    logits, labels = random.standard_normal((9, 33)), random.integers(0, 33, 9).astype(np.int32)
    assert np.abs(cross_entropy.backward_input(3.0, cross_entropy.forward(logits, labels)[1]).sum(1)).max() < 1e-14


def test_not_a_number_is_not_hidden():
    for at in (0, 3, 50, 600):
        logits = np.zeros((1, 700), np.float32)
        logits[0, at] = np.nan
        assert np.isnan(cross_entropy.forward(logits, np.zeros(1, np.int32))[0])


def test_a_row_has_the_same_bits_in_any_batch(random):
    labels = random.integers(-1, 37, 67).astype(np.int32)

    def apply(x, a):
        _, saved = cross_entropy.forward(x, labels[a : a + len(x)])
        return saved[1], cross_entropy.backward_input(0.3, saved)

    same_rows(apply, random)


def test_loss_is_summed_in_float64():
    logits = np.zeros((200_000, 2), np.float32)
    assert abs(cross_entropy.forward(logits, np.zeros(200_000, np.int32))[0] / (200_000 * np.log(2)) - 1) < 1e-7


@pytest.mark.parametrize("bad", [-2, 7])
def test_labels_outside_the_vocabulary_are_refused(bad):
    with pytest.raises(PlanError, match=f"{bad}.*vocabulary = 7"):
        cross_entropy.forward(np.zeros((2, 7)), np.array([0, bad], np.int32))
    with pytest.raises(ValueError, match="do not fit"):
        cross_entropy.forward(np.zeros((2, 7)), np.array([0], np.int32))


def test_strided_logits(random):
    fused, labels = random.standard_normal((5, 20)), np.arange(5, dtype=np.int32)
    loss, saved = cross_entropy.forward(fused[:, 3:12], labels)
    d = cross_entropy.backward_input(1.0, saved)
    assert abs(loss - exact(fused[:, 3:12], labels)[0]) < 1e-13 and distance(d, exact(fused[:, 3:12], labels)[1]) < 1e-14
