"""Samples by global index: none twice, none lost, the same for any cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.config import Data, Model
from hpcpar.data import Corpus, Source, corpus, open_source
from hpcpar.errors import PlanError


def make(n: int, context: int, fraction: float = 0.0, seed: int = 1, ignore=()) -> Corpus:
    """A corpus whose token at position i is i."""
    return Corpus(Source("test", np.arange(n, dtype=np.uint32)), context, n + 1, fraction, seed, tuple(ignore))


sizes = st.tuples(st.integers(1, 9), st.integers(2, 40), st.integers(0, 8), st.sampled_from([0.0, 0.05, 0.3, 0.99]))


@settings(deadline=None)
@given(sizes, st.integers(0, 3), st.integers(0, 2**70))
def test_an_epoch_has_every_sample_once(size, epoch, seed):
    context, samples, more, fraction = size
    n = samples * context + 1 + more % context
    found = make(n, context, fraction, seed)
    assert found.samples == samples and found.tail == more % context
    assert found.train_samples >= 1 and (found.held_samples >= 1) == (fraction > 0)
    ids, labels = found.batch(epoch * found.train_samples, found.train_samples)
    held, held_labels = found.held_out(0, found.held_samples)
    # Every token but the tail is an input once (the last one of all is a label only), and a label once (but the first).
    assert sorted([*ids.ravel(), *held.ravel()]) == list(range(samples * context))
    assert sorted([*labels.ravel(), *held_labels.ravel()]) == list(range(1, samples * context + 1))
    assert np.array_equal(labels, ids + 1) and np.array_equal(held_labels, held + 1)
    # Held out is the end.
    assert sorted(held.ravel().tolist()) == list(range(found.train_samples * context, samples * context))
    assert ids.dtype == labels.dtype == held.dtype == held_labels.dtype == np.int32


@settings(deadline=None)
@given(sizes, st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 100))
def test_any_cut_of_a_batch_sees_the_same_data(size, cuts, first):
    context, samples, more, fraction = size
    found = make(samples * context + 1 + more % context, context, fraction)
    whole = found.batch(first, sum(cuts))
    at, parts = first, []
    for count in cuts:
        parts.append(found.batch(at, count))
        at += count
    for i in range(2):
        assert whole[i].shape == (sum(cuts), context)
        assert np.array_equal(whole[i], np.concatenate([p[i] for p in parts]))
    # Asking for something else in between changes nothing.
    found.batch(7 * found.train_samples, 3)
    assert np.array_equal(found.batch(first, sum(cuts))[0], whole[0])


def test_epochs_and_seeds_reshuffle():
    found = make(1001, 10)
    orders = [found.sample_ids(e * 100, 100).tolist() for e in range(4)]
    orders += [make(1001, 10, seed=s).sample_ids(0, 100).tolist() for s in (0, 2, 2**64 + 1)]
    assert len({tuple(o) for o in orders}) == len(orders)
    assert all(sorted(o) == list(range(100)) for o in orders)
    assert make(1001, 10).sample_ids(0, 100).tolist() == orders[0]


def test_the_order_is_uniform():
    """Each sample comes first about equally often: chi-square over 2000 epochs of 8 samples."""
    first = np.bincount([corpus.order(3, e, 8)[0] for e in range(2000)], minlength=8)
    assert ((first - 250.0) ** 2 / 250).sum() < 24.3  # 0.999 quantile, 7 degrees of freedom


def test_the_order_stays():
    """What a run of an earlier version saw is what a resumed one sees."""
    assert corpus.order(1, 0, 10).tolist() == [1, 9, 0, 6, 2, 7, 8, 3, 5, 4]
    assert make(101, 10).digest(0, 5) == "d757115ac751022c"


def test_the_digest_names_samples_and_order():
    found = make(1001, 10)
    assert len(found.digest(0, 32)) == 16
    assert found.digest(0, 32) == make(1001, 10).digest(0, 32)
    assert len({found.digest(0, 32), found.digest(32, 32), found.digest(0, 31), make(1001, 10, seed=2).digest(0, 32)}) == 4


def test_ignored_labels_are_minus_one_and_inputs_stay():
    tokens = np.array([0, 1, 2, 0, 2, 2, 1, 0, 0, 1, 2], np.uint8)
    found = Corpus(Source("t", tokens), 5, 256, 0.5, 1, (0, 2))
    ids, labels = found.held_out(0, 1)
    assert ids.tolist() == [[2, 1, 0, 0, 1]] and labels.tolist() == [[1, -1, -1, 1, -1]]
    ids, labels = found.batch(0, 1)
    assert ids.tolist() == [[0, 1, 2, 0, 2]] and labels.tolist() == [[1, -1, -1, -1, -1]]


def test_large_ids_are_read(tmp_path):
    file = tmp_path / "x.bin"
    np.array([0, 128255, 70000, 1], "<u4").tofile(file)
    found = open_source(Data(source=str(file), held_out=0.0), Model(vocabulary=128256, context=3), 1)
    ids, labels = found.batch(0, 1)
    assert ids.tolist() == [[0, 128255, 70000]] and labels.tolist() == [[128255, 70000, 1]]
    assert type(ids) is type(labels) is np.ndarray  # not a mapped one: the ops ask for the exact type
    assert found.fingerprint() == found.source.fingerprint()


def test_too_short_is_refused_in_one_line(tmp_path):
    file = tmp_path / "a.txt"
    for size, fraction, need in [(0, 0.0, 9), (8, 0.0, 9), (8, 0.1, 17), (16, 0.1, 17)]:
        file.write_bytes(b"x" * size)
        with pytest.raises(PlanError) as e:
            open_source(Data(source=str(file), held_out=fraction), Model(context=8), 1)
        assert f"has {size} tokens, model.context = 8 needs {need}" in str(e.value) and "\n" not in str(e.value)
        file.write_bytes(b"x" * need)
        open_source(Data(source=str(file), held_out=fraction), Model(context=8), 1)


def test_ignored_ids_must_be_of_the_vocabulary():
    with pytest.raises(PlanError, match=r"data.ignore holds id 300, model.vocabulary = 256"):
        Corpus(Source("t", np.zeros(9, np.uint8)), 4, 256, 0.0, 1, (0, 300))


def test_places_outside_are_errors():
    found = make(101, 10, 0.2)
    for first, count in [(-1, 2), (0, -1), (1, 2), (3, 0)]:
        with pytest.raises(ValueError):
            found.held_out(first, count)
    with pytest.raises(ValueError):
        found.batch(-1, 2)
    assert found.batch(3, 0)[0].shape == (0, 10)


def test_the_held_out_fraction_is_decimal():
    assert make(1001, 10, 0.29).held_samples == 29  # 0.29 * 100 is 28.999... in binary
    assert str(make(1005, 10, 0.29)) == "test: 1005 tokens, 71 samples of 10 to train on, 29 held out, a tail of 4 tokens unused"
