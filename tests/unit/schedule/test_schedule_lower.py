"""The passes: where messages, reductions, tied gradients and norms stand, and that a stream is the list."""

from __future__ import annotations

import itertools

import pytest

from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES, Kind, check, flow, generate, lower, stream
from hpcpar.schedule.action import COMPUTE

FLAGS = [dict(zip(("tied", "reduce", "clip"), x, strict=True)) for x in itertools.product((False, True), repeat=3)]
ASYNCHRONOUS = [n for n in SCHEDULES if n.startswith("pipedream")]


def words(actions) -> str:
    return " ".join(map(str, actions))


def test_the_lists_of_two_ranks():
    program = lower(generate("1f1b", stages=2, microbatches=2), tied=True, reduce=True)
    assert words(program.ranks[0]) == "0F0 0SA0>1 0RG0<1 0F1 0SA1>1 0RG1<1 0B0 0B1 0D 0T 0U"
    assert words(program.ranks[1]) == "1RA0<0 1F0 1RA1<0 1B0 1SG0>0 1F1 1B1 1SG1>0 1D 1T 1U"


def test_the_lists_of_a_flow():
    program = lower(generate("pipedream-vertical", stages=2, microbatches=2, first=7), clip=True, tied=True)
    assert words(program.ranks[0]) == "0F7@7 0SA7>1 0RG7<1 0F8@7 0SA8>1 0RG8<1 0B7@7 0T8 0N8 0U8 0B8@7 0T9 0N9 0U9"
    assert words(program.ranks[1]) == "1RA7<0 1F7@7 1RA8<0 1B7@7 1SG7>0 1T8 1N8 1F8@7 1B8@7 1SG8>0 1T9 1N9 1U8 1U9"


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_proven_for_any_numbers(name):
    """m below p, m = 1 and m that p does not divide work, or are refused for a reason; none waits for ever."""
    seen = 0
    for p, m, x in itertools.product(range(1, 9), (1, 2, 3, 5, 7, 8, 9, 13, 16, 17), (1, 2)):
        for v in (1, 2, 3) if name == "interleaved" else (1,):
            try:
                schedule = generate(name, stages=p, microbatches=m, chunks=v, accumulate=x, batches=3)
            except PlanError as e:
                assert ";" in str(e)  # the remedy
                continue
            seen += 1
            for flags in (FLAGS[0], FLAGS[-1]):
                check(lower(schedule, **flags))
    assert seen >= 50


@pytest.mark.parametrize("name", SCHEDULES)
def test_receives_stand_one_compute_ahead_and_sends_behind_their_producer(name):
    schedule = generate(name, stages=4, microbatches=9)
    for actions in lower(schedule).ranks:
        compute = [a for a in actions if a.kind in COMPUTE]
        place = {(a.kind, a.stage, a.microbatch): i for i, a in enumerate(compute)}
        done = 0
        for a in actions:
            if a.kind in COMPUTE:
                done += 1
            elif a.kind in (Kind.RA, Kind.RG):
                kinds = (Kind.F,) if a.kind is Kind.RA else (Kind.I, Kind.B)
                consumer = next(place[k, a.stage, a.microbatch] for k in kinds if (k, a.stage, a.microbatch) in place)
                assert done == max(0, consumer - 1)
            elif a.kind in (Kind.SA, Kind.SG):
                kinds = (Kind.F,) if a.kind is Kind.SA else (Kind.I, Kind.B)
                producer = next(place[k, a.stage, a.microbatch] for k in kinds if (k, a.stage, a.microbatch) in place)
                block = schedule.paired and a.kind is Kind.SA and producer + 2 == done and compute[producer + 1].kind is Kind.B
                assert done == producer + 1 or block


@pytest.mark.parametrize("name", ASYNCHRONOUS)
@pytest.mark.parametrize("updates", ["lazy", "eager"])
def test_a_stream_is_the_list(name, updates):
    for p, first, count in itertools.product((1, 2, 5), (0, 3), (1, 2, 9)):
        whole = flow(name, stages=p, group=5, first=first, last=first + count, updates=updates)
        for flags in FLAGS:
            program = lower(whole.schedule(), **flags)
            for rank in range(whole.ranks):
                assert tuple(stream(whole, rank, **flags)) == program.ranks[rank]


def test_a_stream_with_replicas_is_the_list():
    for replicas in itertools.product((1, 2, 3, 5), repeat=3):
        for count in (1, 7, 20):
            whole = flow("pipedream", stages=3, first=4, last=4 + count, replicas=replicas)
            program = lower(whole.schedule())
            check(program)
            for rank in range(whole.ranks):
                assert tuple(stream(whole, rank)) == program.ranks[rank]


def test_a_long_stream_is_not_listed():
    whole = flow("pipedream-2bw", stages=4, group=8, first=0, last=10**12)
    assert words(itertools.islice(stream(whole, 3), 5)) == "3RA0<2 3F0@0 3RA1<2 3B0@0 3SG0>2"


def test_replicas_are_numbered_stage_by_stage_and_take_microbatches_in_turn():
    schedule = generate("pipedream", stages=2, microbatches=7, replicas=(3, 2))
    assert schedule.holders(0) == (0, 1, 2) and schedule.holders(1) == (3, 4)
    for k in range(7):
        assert schedule.rank_of(0, k) == k % 3 and schedule.rank_of(1, k) == 3 + k % 2
    # the last round of stage 0 has microbatch 6 alone: the others take part in its reduction and update too
    program = lower(schedule)
    for rank in range(3):
        assert [str(a) for a in program.ranks[rank] if a.kind in (Kind.D, Kind.U)] == ["0D3", "0U3", "0D6", "0U6", "0D7", "0U7"]


@pytest.mark.parametrize("name", ["dualpipe", "chimera"])
def test_copies_are_reduced_in_one_order_on_all_ranks(name):
    program = lower(generate(name, stages=4, microbatches=8))
    for rank, actions in enumerate(program.ranks):
        mine = sorted((rank, 3 - rank))
        assert [str(a) for a in actions if a.kind is Kind.D] == [f"{s}D" for s in mine]
        assert program.schedule.stages_of(rank) == tuple(mine)
    assert program.schedule.tied_peer(0, 0) == 0 and program.schedule.tied_peer(3, 3) == 3


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("nonsense", {}, "not known"),
        ("dualpipe", {"stages": 3}, "must be even"),
        ("chimera", {"microbatches": 1}, "each of its two directions"),
        ("1f1b", {"chunks": 2}, "use chunks = 1"),
        ("zb-v", {"chunks": 3}, "use chunks = 2"),
        ("1f1b", {"microbatches": 0}, "microbatches = 0 must be at least 1"),
        ("1f1b", {"replicas": (1, 2, 1, 1)}, "only pipedream"),
        ("pipedream", {"replicas": (1, 2)}, "2 entries for 4 stages"),
        ("pipedream", {"replicas": (1, 2, 0, 1)}, "at least one"),
        ("pipedream", {"accumulate": 2}, "accumulate = 1"),
        ("pipedream", {"updates": "soon"}, "lazy"),
        ("pipedream-vertical", {"replicas": (2, 1, 1, 1)}, "do not correspond"),
        ("pipedream-2bw", {"replicas": (2, 2, 2, 2)}, "use dp"),
        ("pipedream-2bw", {"microbatches": 2}, "use microbatches >= 3"),
    ],
)
def test_what_cannot_be_is_refused(name, options, why):
    with pytest.raises(PlanError, match=why):
        generate(name, **{"stages": 4, "microbatches": 8, **options})
