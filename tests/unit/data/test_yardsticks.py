"""The yardsticks against a naive loop over the very pairs that a model is evaluated on."""

from math import log

import numpy as np
import pytest

from hpcpar.data import Corpus, Source, Yardsticks
from hpcpar.data import yardsticks as module

ALPHA = module.ALPHA


def make(n: int, vocabulary: int, context: int, fraction: float, ignore=()) -> Corpus:
    rng = np.random.default_rng(n)
    tokens = np.minimum(rng.geometric(0.2, n) + rng.integers(0, 3, n) - 1, vocabulary - 1)
    return Corpus(Source("t", tokens.astype(np.uint16)), context, vocabulary, fraction, 1, ignore)


def naive(corpus: Corpus, count: int) -> tuple[float, float, int]:
    """Both losses sample by sample and token by token."""
    singles, firsts, pairs, size = {}, {}, {}, corpus.vocabulary - len(set(corpus.ignore))
    for g in range(corpus.train_samples):  # one epoch
        for a, b in zip(*(x[0].tolist() for x in corpus.batch(g, 1)), strict=True):
            if b >= 0:
                singles[b] = singles.get(b, 0) + 1
                firsts[a] = firsts.get(a, 0) + 1
                pairs[a, b] = pairs.get((a, b), 0) + 1
    one = two = 0.0
    n = 0
    for i in range(count):
        for a, b in zip(*(x[0].tolist() for x in corpus.held_out(i, 1)), strict=True):
            if b >= 0:
                one -= log((singles.get(b, 0) + 1) / (sum(singles.values()) + size))
                two -= log((pairs.get((a, b), 0) + ALPHA) / (firsts.get(a, 0) + ALPHA * size))
                n += 1
    return one / n, two / n, n


@pytest.mark.parametrize("dense", [0, 1 << 22])
@pytest.mark.parametrize("block", [7, 1 << 22])
@pytest.mark.parametrize("ignore", [(), (0, 3)])
def test_equal_to_a_naive_loop(monkeypatch, dense, block, ignore):
    monkeypatch.setattr(module, "DENSE", dense)
    monkeypatch.setattr(module, "BLOCK", block)
    corpus = make(811, 30, 9, 0.2, ignore)
    for count in (1, 5, corpus.held_samples):
        found, (one, two, labels) = Yardsticks.of(corpus, count), naive(corpus, count)
        assert found.labels == labels and not found.reason
        assert found.unigram_loss == pytest.approx(one, rel=1e-13)
        assert found.bigram_loss == pytest.approx(two, rel=1e-13)
    assert Yardsticks.of(corpus) == Yardsticks.of(corpus, 10**6) == found


def test_probabilities_sum_to_one():
    """Held out is each pair of ids once, so that every row of the bigram's table can be added up."""
    v = 4
    cycle = [0, 0, 1, 0, 2, 0, 3, 1, 1, 2, 1, 3, 2, 2, 3, 3, 0]  # a de Bruijn sequence: its 16 pairs are all different
    tokens = np.array([1, 2, 1, 2, 3, 1, 2, 2, 1, 3, 3, 3, 1, 2, 3, 1, *cycle], np.uint8)
    corpus = Corpus(Source("t", tokens), 16, v, 0.5, 1)
    ids, labels = (x[0].astype(np.int64) for x in corpus.held_out(0, 1))
    assert len(set(zip(ids.tolist(), labels.tolist(), strict=True))) == 16
    pairs, firsts = module.Pairs(ids, labels, v), np.zeros(v)
    for x, y in module._train(corpus):
        pairs.count(x, y)
        firsts += np.bincount(x, minlength=v)
    total = np.bincount(ids, (pairs.found() + ALPHA) / (firsts[ids] + ALPHA * v), v)
    assert total == pytest.approx(np.ones(v), abs=1e-14)


def test_large_vocabularies_and_nothing_to_count(monkeypatch):
    tokens = np.array([5, 70000, 128255, 5, 70000, 128255, 5, 70000, 5], np.uint32)
    found = Yardsticks.of(Corpus(Source("t", tokens), 2, 128256, 0.25, 1))
    # Held out: 5 -> 70000 (seen twice of two), 70000 -> 5 (unseen; 70000 was followed twice by 128255).
    expected = (log(2 + ALPHA * 128256) - log(2 + ALPHA) + log(2 + ALPHA * 128256) - log(ALPHA)) / 2
    assert found.bigram_loss == pytest.approx(expected) and found.labels == 2

    none = Yardsticks.of(Corpus(Source("t", np.zeros(9, np.uint8)), 2, 256, 0.25, 1, (0,)))
    assert none == Yardsticks(None, None, 0, "no held-out label counts")
    assert Yardsticks.of(make(100, 9, 9, 0.0)).reason == "no held-out label counts"
    monkeypatch.setattr(module, "MOST_TOKENS", 10)
    many = Yardsticks.of(make(100, 9, 9, 0.2))
    assert many.bigram_loss is None and "81 training tokens are more than the 10" in many.reason
