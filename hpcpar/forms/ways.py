"""The ways of rows to their experts (`plan.experts`): what is sent between whom, for any rank, and which ways there are under which plans.

What an exchange sends, and where:

    counts     exchanged     8 E bytes, then as many rows as there are               any gate
               fixed         E (1 + C) rows always, C = capacity x groups            gates with a capacity
    exchange   mpi           one all-to-all
               pairwise      p - 1 messages each way
               two-level     one message from each other rank of the node, one from each other node
    overlap    n <= E / ep   the experts of a rank in n parts: the rows of an expert stay together, and so do its sums
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hpcpar.config import Config, Ways
from hpcpar.errors import PlanError
from hpcpar.forms.expert import held
from hpcpar.layout import cut

Hops = dict[tuple[int, int], int]  # (from, to) -> what is sent


def part(experts: int, ep: int, index: int, parts: int, k: int) -> range:
    """Part k of the experts of rank `index`: what is computed while the rows of part k + 1 are on their way."""
    mine = held(experts, ep, index)
    return mine[cut(len(mine), parts, k)]


def fixed_rows(experts: int, most: int) -> int:
    """The rows that a rank gives to one dispatch with fixed counts; each expert's begin with one that says how many of them count.

    `most` is the capacity of an expert times the groups of the microbatch. Of combine it gives `ep` x its own experts instead of all.
    """
    return experts * (1 + most)


def relay(nodes: Sequence[int], source: int, holder: int) -> int:
    """The rank of the source's node that gathers what its ranks have for `holder`; nodes[r] is the node of rank r of the group.

    Its place on its node is that of the holder on its own, modulo the ranks of the node: each gathers for as many holders as another, or
    for one more of a node. On the holder's own node it is the holder.
    """
    place = sum(n == nodes[holder] for n in nodes[:holder])
    mates = [r for r, n in enumerate(nodes) if n == nodes[source]]
    return mates[place % len(mates)]


def hops(exchange: str, nodes: Sequence[int], given: Sequence[Sequence[int]], back: bool = False) -> tuple[Hops, Hops]:
    """The messages of one exchange by messages, inside nodes and across them: given[s][h] goes from s to h, or `back` from h to s."""
    inside: Hops = {}
    across: Hops = {}
    for s, row in enumerate(given):
        for h, n in enumerate(row):
            way = (s, relay(nodes, s, h), h) if exchange == "two-level" else (s, h)
            for a, b in pairwise(way):
                if a != b and n:
                    into = inside if exchange == "two-level" and nodes[a] == nodes[b] else across
                    pair = (b, a) if back else (a, b)
                    into[pair] = into.get(pair, 0) + n
    return inside, across


def check(config: Config) -> None:
    """Raise PlanError where rows cannot go as plan.experts says."""
    plan, moe, ways = config.plan, config.model.moe, config.plan.experts
    if plan.ep == 1 or not moe:
        for name in ("counts", "exchange", "overlap"):
            asked, usual = getattr(ways, name), getattr(Ways(), name)
            if asked != usual:
                raise PlanError(
                    f"plan.experts.{name} = {asked!r} with plan.ep = {plan.ep}: no rows go to other ranks; use plan.ep > 1 or leave it out"
                )
        return
    if ways.counts == "fixed" and moe.capacity is None:
        raise PlanError(
            f'plan.experts.counts = "fixed" sends capacity rows to each of model.moe.experts = {moe.experts}, and there is no capacity: '
            'any number of rows may come; set model.moe.capacity = {factor = 1.25}, or use counts = "exchanged"'
        )
    fewest = moe.experts // plan.ep
    if ways.overlap > fewest >= 1:
        raise PlanError(
            f"plan.experts.overlap = {ways.overlap} parts of the experts of a rank, and some rank of plan.ep = {plan.ep} holds {fewest} of "
            f"model.moe.experts = {moe.experts}; use overlap <= {fewest}, or a smaller ep"
        )
