"""Boxes in a global array: do parts cover it, each element once?

shape (4, 6)   parts [0:4, 0:3], [0:1, 3:6], [1:4, 3:6]        a box is a (start, stop) a dim
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

Box = tuple[tuple[int, int], ...]


def box_of(slices: Sequence[slice], shape: Sequence[int]) -> Box:
    """The box that one slice a dim of an array of the shape selects; raises ValueError for a step, a wrong count or a place outside."""
    if len(slices) != len(shape):
        raise ValueError(f"{len(slices)} slices for {len(shape)} dims")
    found = []
    for cut, n in zip(slices, shape, strict=True):
        start, stop = 0 if cut.start is None else int(cut.start), n if cut.stop is None else int(cut.stop)
        if cut.step not in (None, 1) or not 0 <= start <= stop <= n:
            raise ValueError(f"{cut} is no range of {n} elements")
        found.append((start, stop))
    return tuple(found)


def whole(shape: Sequence[int]) -> tuple[slice, ...]:
    """The slices of all of an array."""
    return tuple(slice(0, n) for n in shape)


def extent(box: Box) -> tuple[int, ...]:
    """The shape of a box."""
    return tuple(stop - start for start, stop in box)


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes share; None where that is nothing."""
    found = tuple((max(p, q), min(r, s)) for (p, r), (q, s) in zip(a, b, strict=True))
    return found if all(start < stop for start, stop in found) else None


def inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """Slices of the box within an array that holds `outer`."""
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, outer, strict=True))


def times_covered(box: Box, parts: Iterable[Box]) -> tuple[int, int]:
    """The least and the largest number of parts that an element of the box is in; (1, 1) for a box without elements.

    Counted on the grid of the parts' own edges, which is as small as the cut is simple, not on the elements.
    """
    if not prod(extent(box)):
        return 1, 1
    shared = [s for part in parts if (s := overlap(box, part)) is not None]
    edges = [sorted({*ends, *(e for s in shared for e in s[dim])}) for dim, ends in enumerate(box)]
    count = np.zeros([len(e) - 1 for e in edges], np.int32)
    place = [{e: i for i, e in enumerate(ends)} for ends in edges]
    for s in shared:
        count[tuple(slice(at[start], at[stop]) for at, (start, stop) in zip(place, s, strict=True))] += 1
    return int(count.min()), int(count.max())
