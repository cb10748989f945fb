"""The ways of rows to their experts as arithmetic: who passes on what, and which ways are refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpcpar.config import Config, build
from hpcpar.errors import PlanError
from hpcpar.forms import ways
from hpcpar.forms.expert import held
from hpcpar.run import feasible

UNEVEN = (0, 0, 0, 1, 1)


def test_relays_by_hand() -> None:
    """The picture of parallel/expert/two_level.py."""
    assert [ways.relay(UNEVEN, 1, holder) for holder in range(5)] == [0, 1, 2, 0, 1]
    assert [ways.relay(UNEVEN, 3, holder) for holder in range(5)] == [3, 4, 3, 3, 4]
    assert [ways.relay((7, 2, 7), s, h) for s, h in ((0, 1), (1, 0), (1, 2), (2, 1), (2, 0))] == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("nodes", [UNEVEN, (0, 0, 0, 0), (0, 1, 2), (1, 0, 0, 1, 2, 1, 0)])
@pytest.mark.parametrize("back", [False, True])
def test_two_levels_send_one_message_a_node(nodes: tuple[int, ...], back: bool) -> None:
    p = len(nodes)
    given = [[100 * s + h + 1 for h in range(p)] for s in range(p)]
    inside, across = ways.hops("two-level", nodes, given, back)
    none, all_pairs = ways.hops("pairwise", nodes, given, back)
    assert not none and len(all_pairs) == p * (p - 1)
    far = {(a, b): n for (a, b), n in all_pairs.items() if nodes[a] != nodes[b]}
    assert sum(across.values()) == sum(far.values()), "a row crosses between nodes once"
    ends = {(b, nodes[a]) if not back else (a, nodes[b]) for a, b in across}
    assert len(across) == len(ends) == p * (len(set(nodes)) - 1)
    assert all(nodes[a] == nodes[b] and a != b for a, b in inside)


def test_hops_by_hand() -> None:
    given = [[9, 9, 1, 2], [9, 9, 4, 8], [0, 0, 9, 9], [0, 16, 9, 9]]
    inside, across = ways.hops("two-level", (0, 0, 1, 1), given)
    assert across == {(0, 2): 5, (1, 3): 10, (3, 1): 16}
    assert inside == {(0, 1): 9 + 2, (1, 0): 9 + 4, (2, 3): 9, (3, 2): 9}
    assert ways.hops("two-level", (0, 0, 1, 1), given, True) == (
        {(b, a): n for (a, b), n in inside.items()},
        {(2, 0): 5, (3, 1): 10, (1, 3): 16},
    )


def test_parts_are_pieces_of_what_a_rank_holds() -> None:
    assert [list(ways.part(11, 3, 1, 2, k)) for k in range(2)] == [[4, 5], [6, 7]]
    for experts, ep, n in ((11, 3, 3), (7, 7, 1), (9, 2, 4)):
        for r in range(ep):
            pieces = [ways.part(experts, ep, r, n, k) for k in range(n)]
            assert [e for piece in pieces for e in piece] == list(held(experts, ep, r)) and all(map(len, pieces))
    assert ways.fixed_rows(8, 5) == 48


def config(plan: dict[str, Any], moe: dict[str, Any] | None = None) -> Config:
    model = {"moe": {"experts": 8, **moe}} if moe is not None else {}
    return build({"model": model, "plan": plan})


CAPACITY = {"capacity": {"factor": 1.0}}
REFUSED = {
    "one rank": (config({"experts": {"exchange": "pairwise"}}, {}), ["exchange = 'pairwise'", "plan.ep = 1", "plan.ep > 1"]),
    "no experts": (config({"dp": 2, "ep": 2, "experts": {"overlap": 2}}), ["overlap = 2", "no rows"]),
    "dropless": (config({"dp": 2, "ep": 2, "experts": {"counts": "fixed"}}, {}), ["experts = 8", "capacity = {factor", '"exchanged"']),
    "too many parts": (
        config({"dp": 3, "ep": 3, "experts": {"overlap": 3}}, {}),
        ["overlap = 3", "holds 2", "experts = 8", "overlap <= 2"],
    ),
}


@pytest.mark.parametrize(("asked", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(asked: Config, words: list[str]) -> None:
    with pytest.raises(PlanError) as refusal:
        ways.check(asked)
    for word in words:
        assert word in str(refusal.value)


def test_what_can_be_is_not_refused() -> None:
    ways.check(config({"dp": 2, "ep": 2, "experts": {"counts": "fixed", "exchange": "two-level", "overlap": 4}}, CAPACITY))
    ways.check(config({}))


def test_a_run_asks() -> None:
    with pytest.raises(PlanError, match="overlap = 2"):
        feasible.check_sharing(config({"experts": {"overlap": 2}}, {}))
