"""A range of a flat array as boxes of slices of the parameters in it: what a shard writes and reads.

flat      0 ........ 24 | 24 .. 30 | 30 ........ 40          a shard of 20 .. 33 holds the end of the first, the second and
          (6, 4)          (6,)       (2, 5)                  the beginning of the third: [5:6, 0:4], [0:6], [0:1, 0:3]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Protocol


class Place(Protocol):
    """Where a parameter lies in a flat array: [start, stop), seen as `shape`."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def boxes_of_range(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[slice, ...], int, int]]:
    """(slices, first, last + 1) of the fewest boxes that hold the elements start .. stop - 1, in C order, of an array of `shape`."""
    if start >= stop:
        return
    if len(shape) <= 1:
        yield (slice(start, stop),)[: len(shape)], start, stop
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:  # within one row
        yield from _inside(shape, first - 1, start, stop)
        return
    yield from _inside(shape, first - 1, start, first * row)
    if first < last:
        yield (slice(first, last), *(slice(0, n) for n in shape[1:])), first * row, last * row
    yield from _inside(shape, last, last * row, stop)


def _inside(shape: tuple[int, ...], index: int, start: int, stop: int) -> Iterator[tuple[tuple[slice, ...], int, int]]:
    base = index * prod(shape[1:])
    for slices, a, b in boxes_of_range(shape[1:], start - base, stop - base):
        yield (slice(index, index + 1), *slices), base + a, base + b


def boxes_within(places: Mapping[str, Place], start: int, stop: int) -> Iterator[tuple[str, tuple[slice, ...], int, int]]:
    """(name, slices, first, last + 1) of the boxes that the range start .. stop - 1 of a flat array is made of."""
    for name, at in places.items():
        low, high = max(start, at.start), min(stop, at.stop)
        for slices, a, b in boxes_of_range(at.shape, low - at.start, high - at.start):
            yield name, slices, at.start + a, at.start + b
