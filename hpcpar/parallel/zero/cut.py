"""From a stage's flat map to its shards: which neighbours may share a bucket.

zero 1, 2   | tokens (tied) | positions, blocks.0, blocks.1, norm |         a bucket reaches across layers
zero 3      | tokens (tied) | positions | blocks.0 | blocks.1 | norm |      a layer is gathered alone, so none does
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcpar.config import Sync
from hpcpar.forms.zero import Shards, Span
from hpcpar.nn.parameters import FlatMap

TIED = "tokens.weight"
SLOTS = 2  # arrays of which one is in use and one on its way; a part of a layer (a weight and its bias) may reach into two buckets


def shards_of(at: FlatMap, zero: int, tied: bool, sync: Sync, itemsize: int, owners: int) -> Shards:
    """The shards of a stage; `tied` says that the model ties the embedding and the head, wherever the two are."""
    layers = [_own(at, layer) for layer in range(len(at.layers))]
    if zero < 3:
        every = sorted(span for own in layers for span in own)
        runs = [run for run in ([s for s in every if s[1] <= at.border], [s for s in every if s[0] >= at.border]) if run]
    else:
        runs = layers
    return Shards.of(runs, tied_span(at, tied), itemsize, sync.bucket_mb * 1e6, sync.first_bucket_mb * 1e6, owners)


def tied_span(at: FlatMap, tied: bool) -> Span | None:
    """Where the tied weight lies in this stage, if the model has one and the stage holds it."""
    return (at.names[TIED].start, at.names[TIED].stop) if tied and TIED in at.names else None


def units(at: FlatMap, tied: bool) -> list[Span]:
    """What is gathered for each layer under zero 3: its range without the tied weight, which is gathered for all its uses together."""
    apart, out = tied_span(at, tied), []
    for layer in range(len(at.layers)):
        own = [span for span in _own(at, layer) if span != apart]
        out.append((own[0][0], own[-1][1]) if own else (0, 0))
    return out


def slots(sizes: Iterable[int]) -> int:
    """The elements of the slots through which arrays of these sizes pass: each as large as the largest."""
    every = list(sizes)
    return max(every) * min(SLOTS, len(every))


def _own(at: FlatMap, layer: int) -> list[Span]:
    """The spans that one W of a layer fills, ascending: matrices that one product serves are never parted."""
    return sorted((s.start, s.stop) for s in at.gradient_spans[layer].values() if s is not at.second)
