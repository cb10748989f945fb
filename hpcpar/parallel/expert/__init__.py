"""Rows to the ranks that hold their experts, and back: what goes where (`way`), how it travels, and how this meets the layer (`exchange`).

What `plan.experts` chooses:

    exchange   one file each: the MPI's own all-to-all (`collective`), messages (`pairwise`), inside nodes first (`two_level`)
    counts     "exchanged" before the first rows, or "fixed": blocks of one length that say how many of their rows count
    overlap    the experts of a rank are computed in so many parts, while rows of the next one are on their way
"""

from __future__ import annotations

from hpcpar.parallel.expert.exchange import Exchange

__all__ = ["Exchange"]
