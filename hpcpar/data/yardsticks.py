"""The losses of a unigram and a bigram model: what a trained model must be below.

    unigram  p(b)     = (count(b) + 1) / (labels + V)
    bigram   p(b | a) = (count(a b) + alpha) / (count(a) + alpha V)

Counted over the (input, label) pairs of training whose label counts; the loss is the mean of -ln p over those of the held-out
samples, in nats, so that all three models answer for exactly the same labels. V is the number of ids that count as labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcpar.data.corpus import Corpus

ALPHA = 0.01  # pairs added to each pair; small, as nearly all pairs that occur do so often
DENSE = 1 << 22  # pairs of ids up to which all are counted; above it only those that the held-out samples have
MOST_TOKENS = 1 << 28  # counting more would take longer than a user waits for a yardstick
BLOCK = 1 << 22  # tokens counted together


@dataclass(frozen=True)
class Yardsticks:
    """Mean losses in nats over `labels` held-out labels; None with the `reason` where there is none."""

    unigram_loss: float | None
    bigram_loss: float | None
    labels: int
    reason: str = ""

    @classmethod
    def of(cls, corpus: Corpus, count: int | None = None) -> Yardsticks:
        """The losses on the first `count` held-out samples (all of them if None), counted on all of training."""
        count = corpus.held_samples if count is None else min(count, corpus.held_samples)
        ids, labels = corpus.held_out(0, count)
        kept = labels >= 0
        a, b = ids[kept].astype(np.int64), labels[kept].astype(np.int64)
        if not b.size:
            return cls(None, None, 0, "no held-out label counts")
        tokens = corpus.train_samples * corpus.context
        if tokens > MOST_TOKENS:
            return cls(None, None, b.size, f"{tokens} training tokens are more than the {MOST_TOKENS} that are counted")
        firsts, seconds = np.zeros(corpus.vocabulary, np.int64), np.zeros(corpus.vocabulary, np.int64)
        pairs = Pairs(a, b, corpus.vocabulary)
        for x, y in _train(corpus):
            firsts += np.bincount(x, minlength=corpus.vocabulary)
            seconds += np.bincount(y, minlength=corpus.vocabulary)
            pairs.count(x, y)
        size = corpus.vocabulary - len(set(corpus.ignore))
        unigram = np.log(seconds.sum() + size) - np.log(seconds[b] + 1.0)
        bigram = np.log(firsts[a] + ALPHA * size) - np.log(pairs.found() + ALPHA)
        return cls(float(unigram.mean()), float(bigram.mean()), b.size)


class Pairs:
    """How often each of the pairs (a, b) (N,) occurs in what is counted: all pairs for few ids, else only those asked for."""

    def __init__(self, a: np.ndarray, b: np.ndarray, vocabulary: int):
        self.vocabulary = vocabulary
        self.keys, self.places = np.unique(a * vocabulary + b, return_inverse=True)
        self.dense = vocabulary * vocabulary <= DENSE
        self.counts = np.zeros(vocabulary * vocabulary if self.dense else self.keys.size, np.int64)

    def count(self, x: np.ndarray, y: np.ndarray) -> None:
        """Count the pairs (x, y) (N,)."""
        keys = x * self.vocabulary + y
        if not self.dense:
            at = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
            keys = at[self.keys[at] == keys]
        self.counts += np.bincount(keys, minlength=self.counts.size)

    def found(self) -> np.ndarray:
        """The count of each pair asked for (N,), in the order given."""
        return (self.counts[self.keys] if self.dense else self.counts)[self.places]


def _train(corpus: Corpus) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every (input, label) pair of training whose label counts, in blocks."""
    stop = corpus.train_samples * corpus.context
    for start in range(0, stop, BLOCK):
        block = np.asarray(corpus.source.tokens[start : min(start + BLOCK, stop) + 1], np.int64)
        x, y = block[:-1], block[1:]
        if corpus.ignore:
            kept = ~np.isin(y, corpus.ignore)
            x, y = x[kept], y[kept]
        yield x, y
