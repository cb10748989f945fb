"""Samples by global index: which tokens sample g of a run is, whatever the plan.

    tokens    0 1 2 3 4 5 6 7 8 9 10 11 12      T = 3
    sample 0  0 1 2 3                           inputs 0 1 2, labels 1 2 3
    sample 1        3 4 5 6
    sample 2              6 7 8 9               the last `held_out` of them are held out
    tail                         10 11 12       fewer than T + 1 tokens from the last label on: in no sample

Samples are T tokens apart, so every token but the first and the tail is a label once. The last label of training is the
first input of the held-out split: no label is in both.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hpcpar.data.sources import Source, open_tokens
from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.config import Data, Model


@lru_cache(maxsize=3)  # a batch may cross from one epoch into the next; held-out samples have an order of their own
def order(seed: int | str, epoch: int, samples: int) -> np.ndarray:
    """The permutation (samples,) in which an epoch visits its samples.

    The sorting order of counter-based random numbers, whose stream, unlike that of NumPy's shuffles, is promised to stay.
    """
    key = hashlib.sha256(f"samples {seed} {epoch}".encode()).digest()[:16]
    found = np.argsort(np.random.Philox(key=np.frombuffer(key, "<u8")).random_raw(samples), kind="stable")
    found.setflags(write=False)
    return found


@dataclass(frozen=True, eq=False)
class Corpus:
    """The samples of a source: T = `context` tokens and their successors; a label in `ignore` becomes -1.

    Sample g of a run is sample place = g % train_samples of epoch g // train_samples.
    """

    source: Source
    context: int
    vocabulary: int
    fraction: float  # of the samples, held out
    seed: int
    ignore: tuple[int, ...] = ()

    @classmethod
    def of(cls, data: Data, model: Model, seed: int, share: tuple[int, int] = (0, 1)) -> Corpus:
        """The corpus of a description; `share` as in `open_tokens`. Raises PlanError where it cannot be."""
        source = open_tokens(data.source, model.vocabulary, share)
        return cls(source, model.context, model.vocabulary, data.held_out, seed, data.ignore)

    def __post_init__(self) -> None:
        wrong = [i for i in self.ignore if not 0 <= i < self.vocabulary]
        if wrong:
            raise PlanError(f"data.ignore holds id {wrong[0]}, model.vocabulary = {self.vocabulary}; ids are below the vocabulary")
        least = 2 if self.fraction else 1
        if self.samples < least:
            of = "a sample of training and one held out" if self.fraction else "one sample"
            remedy = "a longer text, a smaller context" + (" or data.held_out = 0" if self.fraction else "")
            raise PlanError(
                f'data.source = "{self.source.name}" has {self.source.tokens.size} tokens, model.context = {self.context} needs '
                f"{least * self.context + 1} for {of}; use {remedy}"
            )

    @property
    def samples(self) -> int:
        """The number of samples, training and held out."""
        return max(0, self.source.tokens.size - 1) // self.context

    @property
    def held_samples(self) -> int:
        """The number of samples held out: the fraction, rounded down, but at least one where it is not 0."""
        return max(1, math.floor(self.samples * Fraction(str(float(self.fraction))))) if self.fraction else 0

    @property
    def train_samples(self) -> int:
        """The number of samples of one epoch."""
        return self.samples - self.held_samples

    @property
    def tail(self) -> int:
        """The number of tokens at the end that are in no sample."""
        return self.source.tokens.size - (self.samples * self.context + 1)

    def sample_ids(self, first: int, count: int) -> np.ndarray:
        """Which samples of the source the global samples first .. first + count - 1 are (count,) int64."""
        if first < 0 or count < 0:
            raise ValueError(f"samples {first} to {first + count}: neither may be negative")
        found, n = [], self.train_samples
        stop = first + count
        while first < stop:
            epoch, place = divmod(first, n)
            part = order(self.seed, epoch, n)[place : place + stop - first]
            found.append(part)
            first += part.size
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def batch(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The global samples first .. first + count - 1 of training: ids (count, T), labels (count, T), int32."""
        return self._read(self.sample_ids(first, count))

    def held_out(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The held-out samples first .. first + count - 1 in a mixed order that never changes: ids (count, T), labels (count, T), int32.

        Mixed, so that the first few stand for all; the same for every seed, so that runs are measured on the same samples.
        """
        if first < 0 or count < 0 or first + count > self.held_samples:
            raise ValueError(f"held-out samples {first} to {first + count} of {self.held_samples}")
        return self._read(self.train_samples + order("held out", 0, self.held_samples)[first : first + count])

    def digest(self, first: int, count: int) -> str:
        """Sixteen hexadecimal digits that name the global samples first .. first + count - 1 and their order."""
        return hashlib.sha256(self.sample_ids(first, count).astype("<i8").tobytes()).hexdigest()[:16]

    def fingerprint(self) -> str:
        """The sha256 of the source's tokens, for ranks and resumed runs to agree on."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.source.fingerprint()

    def _read(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = samples[:, None] * self.context + np.arange(self.context + 1)
        found = self.source.tokens[rows].astype(np.int32)
        ids, labels = found[:, :-1].copy(), found[:, 1:].copy()
        if self.ignore:
            labels[np.isin(labels, self.ignore)] = -1
        return ids, labels

    def __str__(self) -> str:
        text = f"{self.source.name}: {self.source.tokens.size} tokens, {self.train_samples} samples of {self.context} to train on"
        held = f", {self.held_samples} held out" if self.held_samples else ""
        return f"{text}{held}, a tail of {self.tail} tokens unused"
