"""A proof for each table, before it is run: every sum is whole, has the same bits everywhere, and nobody waits for ever.

Each rank's chunk holds an expression: at first its own number, after a reduce the sum of two. Sums are equal whatever the order of the
two (a + b has the bits of b + a), not whatever the brackets ((a + b) + c has not those of a + (b + c)).

No deadlock: a rank's sends of a round need nothing that it receives in that round, so round k ends everywhere once round k - 1 has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcpar.collectives.table import Move, Round, Table


class Broken(ValueError):
    """A table that is no all-reduce; says where."""


@dataclass
class _Sums:
    """Expressions by number, each kept once; `who` is the set of ranks in it, a bit each."""

    who: list[int]
    known: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, a: int, b: int) -> int:
        """The number of a + b; -1 where a rank would be counted twice."""
        if self.who[a] & self.who[b]:
            return -1
        key = (a, b) if a < b else (b, a)
        if key not in self.known:
            self.known[key] = len(self.who)
            self.who.append(self.who[a] | self.who[b])
        return self.known[key]


def check(table: Table) -> None:
    """Raise Broken unless all ranks end with the same sum of every rank's contribution, once each, in every chunk."""
    n = table.ranks
    sums = _Sums([1 << rank for rank in range(n)])
    held = [[rank] * table.chunks for rank in range(n)]
    for number, moves in enumerate(table.rounds, 1):
        _check_moves(table, moves, number)
        carried = [held[m.source][m.first : m.last] for m in moves]  # what each source has at the start
        for m, what in zip(moves, carried, strict=True):
            for chunk, expression in enumerate(what, m.first):
                new = sums.add(held[m.destination][chunk], expression) if m.reduce else expression
                if new < 0:
                    raise Broken(f"round {number}: rank {m.destination} adds a contribution to chunk {chunk} that it already has")
                held[m.destination][chunk] = new
    everyone = (1 << n) - 1
    for chunk in range(table.chunks):
        for rank in range(n):
            if missing := everyone & ~sums.who[held[rank][chunk]]:
                raise Broken(f"at the end chunk {chunk} of rank {rank} lacks the contribution of rank {missing.bit_length() - 1}")
            if held[rank][chunk] != held[0][chunk]:
                raise Broken(f"at the end chunk {chunk} of rank {rank} was added in another order than that of rank 0: other bits")


def _check_moves(table: Table, moves: Round, number: int) -> None:
    """One message a pair and round, between ranks and of chunks that exist, and nothing overwritten while it is sent or received."""
    where = f"round {number}"
    pairs: set[tuple[int, int]] = set()
    sent = {(m.source, c) for m in moves for c in range(m.first, m.last)}
    taken: dict[tuple[int, int], Move] = {}
    for m in moves:
        if not (0 <= m.source < table.ranks and 0 <= m.destination < table.ranks) or m.source == m.destination:
            raise Broken(f"{where}: {m.source} -> {m.destination} is no pair of {table.ranks} ranks")
        if not 0 <= m.first < m.last <= table.chunks:
            raise Broken(f"{where}: chunks {m.first} to {m.last} are not among {table.chunks}")
        if (m.source, m.destination) in pairs:
            raise Broken(f"{where}: two messages from rank {m.source} to rank {m.destination}")
        pairs.add((m.source, m.destination))
        for c in range(m.first, m.last):
            at = (m.destination, c)
            if not m.reduce and at in sent:
                raise Broken(f"{where}: rank {m.destination} overwrites chunk {c} while it sends it")
            other = taken.setdefault(at, m)
            if other is not m and not (m.reduce and other.reduce):
                raise Broken(f"{where}: rank {m.destination} overwrites chunk {c} that it receives from rank {other.source} too")
