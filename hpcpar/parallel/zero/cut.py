"""From a stage's flat map to its shards: which neighbours may share a bucket, and who owns them.

zero 1, 2   | tokens (tied) | positions, blocks.0, blocks.1, norm |         a bucket reaches across layers
zero 3      | tokens (tied) | positions | blocks.0 | blocks.1 | norm |      a layer is gathered alone, so none does
zero 1, ep  | tokens (tied) | positions, blocks.0, norm || experts |        experts that are here are cut over those that hold them too
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpcpar.config import Sync
from hpcpar.forms.zero import Piece, Shards, Span
from hpcpar.nn.parameters import FlatMap

if TYPE_CHECKING:
    from hpcpar.comm.world import Group

TIED = "tokens.weight"
SLOTS = 2  # arrays of which one is in use and one on its way; a part of a layer (a weight and its bias) may reach into two buckets


class Cut(NamedTuple):
    """The shards of a range of the flat array, the ranks that own them, and this rank's pieces, placed in arrays of all its pieces."""

    shards: Shards
    of: Group
    pieces: tuple[Piece, ...]

    @classmethod
    def all(cls, every: Sequence[tuple[Shards, Group]]) -> list[Cut]:
        """The cuts of a stage: pieces of one stand behind those of another."""
        out, base = [], 0
        for shards, of in every:
            out.append(cls(shards, of, tuple(p._replace(at=base + p.at) for p in shards.pieces(of.index))))
            base += shards.size(of.index)
        return out


def ranges(at: FlatMap, every: int, same: int) -> list[tuple[Span, int]]:
    """(range of the flat array, number of its owners): what `every` replica holds, and experts that `same` many do, if there are any."""
    return [((0, at.common), every), *([((at.common, at.size), same)] if at.common < at.size else [])]


def shards_of(at: FlatMap, zero: int, tied: bool, sync: Sync, itemsize: int, owners: int, within: Span | None = None) -> Shards:
    """The shards of a stage, or of a range of it; `tied` says that the model ties the embedding and the head, wherever the two are."""
    low, high = within or (0, at.size)
    layers = [[s for s in _own(at, layer) if low <= s[0] < high] for layer in range(len(at.layers))]
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
