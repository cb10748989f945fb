"""Context parallelism: which positions of a sample a rank holds, which blocks of causal attention it computes, and what it sends.

Scores of T = 8 positions over P = 4 ranks; a digit is the rank that holds the row, and computes it:

    ring, ulysses: contiguous        zig-zag, gather: chunks r and 2P - 1 - r of 2P

    0                                0
    0 0                              1 1
    1 1 1                            2 2 2
    1 1 1 1                          3 3 3 3
    2 2 2 2 2                        3 3 3 3 3
    2 2 2 2 2 2                      2 2 2 2 2 2
    3 3 3 3 3 3 3                    1 1 1 1 1 1 1
    3 3 3 3 3 3 3 3                  0 0 0 0 0 0 0 0

    rank r has (2 r + 1) / P^2 of the work    every rank has 1 / P of it, where 2 P divides T

* ring and zig-zag (Ring Attention, arXiv:2310.01889): the keys and values of a rank travel to the next ones, a hop a step, as far as a
  later row needs them. In the backward their gradients travel one hop behind, and from the last rank come home.
* gather: all ranks' keys and values are gathered, in the backward again, and their gradients reduce-scattered.
* ulysses (DeepSpeed-Ulysses, arXiv:2309.14509): an all-to-all turns a piece of the sequence with all heads into the sequence with a piece
  of the heads, and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hpcpar.errors import PlanError
from hpcpar.layout import cut

FORMS = ("zig-zag", "ring", "gather", "ulysses")
EVEN = ("zig-zag", "gather")  # those whose ranks hold two chunks, so that each has the same share of causal work
RING = ("zig-zag", "ring")


def check(form: str, positions: int, heads: int, ranks: int, named: str = "model.heads") -> None:
    """Raise PlanError where a rank would hold no position, or no head while it holds all positions; `named` says what `heads` are."""
    if positions < ranks:
        raise PlanError(f"model.context = {positions} cannot be cut over plan.cp = {ranks} ranks; use plan.cp <= {positions}")
    if form == "ulysses" and heads < ranks:
        raise PlanError(
            f'{named} = {heads} cannot be cut over plan.cp = {ranks} ranks, as plan.context = "ulysses" does; '
            f'use plan.cp <= {heads}, or plan.context = "zig-zag"'
        )


def runs(form: str, positions: int, ranks: int, rank: int) -> tuple[slice, ...]:
    """The runs of positions that a rank holds, in ascending order, which is also the order of its rows."""
    if form not in EVEN:
        return (cut(positions, ranks, rank),)
    chunks = cut(positions, 2 * ranks, rank), cut(positions, 2 * ranks, 2 * ranks - 1 - rank)
    return tuple(c for c in chunks if c.start < c.stop)


def length(held: tuple[slice, ...]) -> int:
    """The number of positions of some runs."""
    return sum(run.stop - run.start for run in held)


@dataclass(frozen=True)
class Block:
    """Scores of one step of the ring: of local `rows` against `columns` of the keys of rank `source`, all or the causal half of them."""

    source: int
    rows: slice
    columns: slice
    causal: bool

    @property
    def scores(self) -> int:
        """How many there are, of one sample and head."""
        r, c = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        return r * (r + 1) // 2 if self.causal else r * c


def reach(form: str, ranks: int, source: int) -> int:
    """How many ranks the keys of `source` visit, itself first: all of them, or on a contiguous cut those with later rows."""
    return ranks if form == "zig-zag" else ranks - source


def blocks(form: str, positions: int, ranks: int, rank: int) -> tuple[Block, ...]:
    """The steps of a rank in the ring: its own keys, then those of the rank before it, and so on; a block may have no rows."""
    mine = runs(form, positions, ranks, rank)
    every, first = slice(0, length(mine)), slice(0, mine[0].stop - mine[0].start)
    out = [Block(rank, every, every, True)]
    for step in range(1, ranks):
        source = (rank - step) % ranks
        if step >= reach(form, ranks, source):
            break
        theirs = runs(form, positions, ranks, source)
        columns = slice(0, length(theirs))
        if source > rank:  # both of their chunks lie between mine
            out.append(Block(source, slice(first.stop, every.stop), columns, False))
        else:  # their first chunk is before both of mine, their second one behind
            out.append(Block(source, every, slice(0, theirs[0].stop - theirs[0].start), False))
    return tuple(out)


def work(form: str, positions: int, heads: int, groups: int, ranks: int, rank: int) -> int:
    """The scores that a rank computes of one sample, over all heads."""
    if form == "ulysses":
        mine, _ = heads_of(heads, groups, ranks, rank)
        return (mine.stop - mine.start) * positions * (positions + 1) // 2
    rows = (range(run.start, run.stop) for run in runs(form, positions, ranks, rank))
    return heads * sum(t + 1 for run in rows for t in run)


def heads_of(heads: int, groups: int, ranks: int, rank: int) -> tuple[slice, slice]:
    """The heads that a rank has in ulysses, and the key/value heads that they read: on several ranks where there are fewer than ranks."""
    many = heads // groups
    if groups >= ranks:
        kv = cut(groups, ranks, rank)
        return slice(kv.start * many, kv.stop * many), kv
    q = cut(heads, ranks, rank)
    return q, slice(q.start // many, (q.stop - 1) // many + 1)


def shares(heads: int, groups: int, ranks: int, rank: int) -> tuple[tuple[slice, slice], ...]:
    """A rank's (heads, key/value heads) in ulysses, counted from its first ones, in pieces whose key/value heads have as many heads."""
    many, (q, kv) = heads // groups, heads_of(heads, groups, ranks, rank)
    count = kv.stop - kv.start
    if q.start == kv.start * many and q.stop == kv.stop * many:
        return ((slice(0, q.stop - q.start), slice(0, count)),)
    ends = [(max(q.start, g * many) - q.start, min(q.stop, (g + 1) * many) - q.start) for g in range(kv.start, kv.stop)]
    return tuple((slice(a, b), slice(g, g + 1)) for g, (a, b) in enumerate(ends))


@dataclass(frozen=True)
class Message:
    """What a rank sends or takes part in: `peer` is a rank of the cp group, -1 of a collective; elements as the trace counts bytes."""

    kind: str
    operation: str
    peer: int
    elements: int


@dataclass(frozen=True)
class Sizes:
    """Of one attention: samples B, positions T, heads H, key/value heads G, head width K, and the number of ranks."""

    samples: int
    positions: int
    heads: int
    groups: int
    width: int
    ranks: int


def messages(form: str, at: Sizes, rank: int, backward: bool) -> list[Message]:
    """All that a rank sends, receives and joins in for one attention forward, or its backward."""
    if form == "ulysses":
        return _exchanged(at, rank, backward)
    if form == "gather":
        whole = prod((2, at.samples, at.positions, at.groups, at.width))
        gathered = [Message("collective", "keys_values", -1, whole)]
        return gathered + [Message("collective", "keys_values_gradient", -1, whole)] * backward
    return _travelling(form, at, rank, backward)


def _travelling(form: str, at: Sizes, rank: int, backward: bool) -> list[Message]:
    n, out = at.ranks, []
    after, before = (rank + 1) % n, (rank - 1) % n
    every = blocks(form, at.positions, n, rank)
    for step, block in enumerate(every):
        size = prod((2, at.samples, length(runs(form, at.positions, n, block.source)), at.groups, at.width))
        ways = ("keys_values", "keys_values_gradient") if backward else ("keys_values",)
        end = step + 1 == reach(form, n, block.source)
        out += [Message("receive", way, before, size) for way in ways if step]
        out += [Message("send", way, after, size) for way in ways if not end]
        if backward and step and end:
            out.append(Message("send", "keys_values_gradient", block.source, size))
        far = reach(form, n, rank)
        if backward and not step and far > 1:
            out.append(Message("receive", "keys_values_gradient", (rank + far - 1) % n, size))
    return out


def _exchanged(at: Sizes, rank: int, backward: bool) -> list[Message]:
    (h, g), n = heads_of(at.heads, at.groups, at.ranks, rank), length(runs("ulysses", at.positions, at.ranks, rank))
    mine, others = h.stop - h.start, [heads_of(at.heads, at.groups, at.ranks, r) for r in range(at.ranks) if r != rank]
    apart = at.positions - n
    q_there, kv_there = (n * sum(x[i].stop - x[i].start for x in others) for i in (0, 1))
    q_back, kv_back = apart * mine, apart * (g.stop - g.start)
    there, back = (q_there, q_back + 2 * kv_back) if backward else (q_there + 2 * kv_there, q_back)
    unit = at.samples * at.width
    return [Message("collective", "to_heads", -1, there * unit), Message("collective", "to_sequence", -1, back * unit)]
