"""The checker refuses programs broken by hand, and says where."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from hpcpar.errors import PlanError
from hpcpar.schedule import Program, check, clock, generate, lower, parse


def edited(program: Program, rank: int, change) -> Program:
    """The program with the words of one rank changed by `change(list of words)`."""
    words = [str(a) for a in program.ranks[rank]]
    change(words)
    lists = list(program.ranks)
    lists[rank] = tuple(parse(w) for w in words)
    schedule = program.schedule
    compute = tuple(a for a in lists[rank] if a.kind in ("F", "I", "W", "B", "U"))
    ranks = tuple(compute if r == rank else actions for r, actions in enumerate(schedule.ranks))
    return replace(program, schedule=replace(schedule, ranks=ranks), ranks=tuple(lists))


def swap(a: str, b: str):
    def change(words):
        i, j = words.index(a), words.index(b)
        words[i], words[j] = b, a

    return change


def drop(*names: str):
    def change(words):
        for name in names:
            words.remove(name)

    return change


def put(old: str, *new: str):
    def change(words):
        i = words.index(old)
        words[i : i + 1] = new

    return change


def move(name: str, before: str):
    def change(words):
        words.remove(name)
        words.insert(words.index(before), name)

    return change


def program(name="1f1b", p=3, m=6, flags=None, **options) -> Program:
    out = lower(generate(name, stages=p, microbatches=m, **options), **(flags or {}))
    check(out)
    return out


SYNCHRONOUS = [
    ("lost microbatch", 1, drop("1RA3<0", "1F3", "1SA3>2", "1B3", "1SG3>0", "1RG3<2"), "microbatch 3 of stage 1 has no forward"),
    ("lost backward", 2, drop("2B5", "2SG5>1"), "microbatch 5 of stage 2 has no backward"),
    ("twice", 0, put("0F1", "0F1", "0F1"), "0F1: is forwarded twice"),
    ("backward first", 2, swap("2F1", "2B1"), "has not been forwarded here"),
    ("order of W", 0, swap("0B4", "0B5"), "accumulates microbatch 4 after 5; W must ascend"),
    ("swapped receives", 1, swap("1RA0<0", "1RA1<0"), "both must be in the same order"),
    ("swapped sends", 0, swap("0SA0>1", "0SA1>1"), "0SA1>1: sends what has not been made here"),
    ("lost receive", 1, drop("1RA2<0"), "1F2: its input comes from rank 0 and no receive is posted before it"),
    ("late receive", 1, move("1RG0<2", "1F3"), "1B0: its gradient comes from rank 2 and no receive"),
    ("lost send", 1, drop("1SG2>0"), "input gradient of stage 1, microbatch 2, is never sent"),
    ("sent twice", 0, put("0SA2>1", "0SA2>1", "0SA2>1"), "was sent before"),
    ("wrong rank", 0, put("0SA2>1", "0SA2>2"), "goes to rank 2, but the next stage of the microbatch is on rank 1"),
    ("no update", 1, drop("1U"), "reach no update; end with 1U"),
    ("two updates", 1, put("1U", "1U", "1U"), "updates twice"),
    ("early update", 1, move("1U", "1B5"), "stands before the gradient of microbatch 5"),
    ("early reduction", 1, move("1D", "1B5"), "stands before the gradient of microbatch 5"),
    ("no reduction", 1, drop("1D"), "needs D of stage 1 before it"),
    ("no tied gradient", 0, drop("0T"), "needs T of stage 0 before it"),
    ("a tied gradient too many", 1, put("1D", "1D", "1T"), "1T: is not needed here"),
    ("a version", 0, put("0F2", "0F2@0"), "a synchronous schedule has no versions"),
    ("no such stage", 0, put("0U", "0U", "9U"), "there are stages 0 to 2 alone"),
    ("no such microbatch", 0, put("0F5", "0F6"), "there are microbatches 0 to 5 alone"),
]


@pytest.mark.parametrize(("rank", "change", "why"), [x[1:] for x in SYNCHRONOUS], ids=[x[0] for x in SYNCHRONOUS])
def test_a_broken_synchronous_program_is_refused(rank, change, why):
    with pytest.raises(PlanError, match=why):
        check(edited(program(flags={"tied": True, "reduce": True}), rank, change))


ASYNCHRONOUS = [
    ("pipedream", 0, put("0B1@0", "0B1@1"), "its forward used version 0; both passes must use one"),
    ("pipedream", 1, put("1F3@2", "1F3@1"), "the newest version here is 2; stashing takes it"),
    ("pipedream", 2, put("2F1@1", "2F1"), "names the version"),
    ("pipedream", 2, put("2F1@1", "2F1@2"), "version 2 does not exist yet"),
    ("pipedream", 2, move("2U1", "2B0@0"), "stands before the gradient of microbatch 0"),
    ("pipedream", 2, put("2U3", "2U2"), "must make a version above 2"),
    ("pipedream", 2, put("2U6", "2U5"), "must make a version above 5"),
    ("pipedream", 2, drop("2U6"), "from microbatch 5 on reach no update; end with 2U6"),
    (
        "pipedream-vertical",
        2,
        lambda w: (put("2F3@1", "2F3@0")(w), put("2B3@1", "2B3@0")(w)),
        "uses version 0 on stage 2 and 1 on the input",
    ),
    ("pipedream-vertical", 1, drop("1N2"), "needs N of stage 1 before it"),
]


@pytest.mark.parametrize(("name", "rank", "change", "why"), ASYNCHRONOUS, ids=[f"{x[0]}: {x[3]}" for x in ASYNCHRONOUS])
def test_a_broken_asynchronous_program_is_refused(name, rank, change, why):
    with pytest.raises(PlanError, match=why):
        check(edited(program(name, flags={"clip": name != "pipedream"}), rank, change))


@pytest.mark.parametrize("delay", [0, 2])
def test_2bw_with_another_delay_is_refused(delay):
    """Batch 2 takes version 2 - delay on all stages instead of version 1; 2 comes too late, 0 still exists."""
    whole = program("pipedream-2bw", p=3, m=3, batches=4)

    def other(words):
        words[:] = [w.replace("@1", f"@{2 - delay}") if re.search("[FB][678]@", w) else w for w in words]

    for rank in range(3):
        whole = edited(whole, rank, other)
    with pytest.raises(PlanError, match="a delay of one wants version 1" if delay else "version 2 does not exist yet"):
        check(whole)


def test_lists_of_another_rule_are_no_2bw():
    schedule = generate("pipedream-vertical", stages=4, microbatches=12, updates="eager")
    with pytest.raises(PlanError, match="a delay of one wants version 1"):
        check(lower(replace(schedule, rule="2bw")))


ZERO_BUBBLE = [
    ("W before I", 1, swap("1I2", "1W2"), "has had no I yet"),
    ("I twice", 1, put("1I2", "1I2", "1I2"), "has been differentiated already"),
    ("no W", 1, drop("1W5"), "microbatch 5 of stage 1 has no weight half"),
    ("order of W", 2, swap("2W3", "2W4"), "accumulates microbatch 3 after 4"),
    ("B for I", 0, put("0I2", "0B2"), "has been differentiated already"),
    ("reduced twice", 1, put("1D", "1D", "1D"), "1D: stands twice"),
]


@pytest.mark.parametrize(("rank", "change", "why"), [x[1:] for x in ZERO_BUBBLE], ids=[x[0] for x in ZERO_BUBBLE])
def test_a_broken_split_backward_is_refused(rank, change, why):
    with pytest.raises(PlanError, match=why):
        check(edited(program("zb-h1", flags={"reduce": True}), rank, change))


def test_a_deadlock_shows_the_grid_and_the_place():
    # rank 0 wants the gradient of microbatch 1 before it sends microbatch 1
    broken = edited(
        program(p=2, m=2),
        0,
        lambda w: w.__setitem__(slice(None), ["0F0", "0RG0<1", "0SA0>1", "0RG1<1", "0B0", "0F1", "0SA1>1", "0B1", "0U"]),
    )
    check(broken)  # that one only waits longer
    lists = [
        "0F0 0SA0>1 0RG0<1 0RG1<1 0B0 0F1 0SA1>1 0B1 0U",
        "1RA0<0 1F0 1RA1<0 1F1 1B0 1SG0>0 1B1 1SG1>0 1U",
    ]
    for rank, text in enumerate(lists):
        broken = edited(broken, rank, lambda w, text=text: w.__setitem__(slice(None), text.split()))
    for prove in (check, clock):
        with pytest.raises(PlanError) as caught:
            prove(broken)
        said = str(caught.value)
        assert said.startswith("deadlock: schedule 1f1b")
        assert "rank 0" in said and ">>0B0<<" in said and ">>1F1<<" in said
        assert "rank 0 stands at 0B0 and waits for the gradient from stage 1, microbatch 0, sent by rank 1 at place 5" in said
        assert "rank 1 stands at 1F1 and waits for the output of stage 0, microbatch 1, sent by rank 0 at place 6" in said


def test_collectives_in_crossing_orders_are_a_deadlock():
    whole = program("chimera", p=2, m=2)
    with pytest.raises(PlanError, match=r"deadlock(.|\n)*waits for the other ranks") as caught:
        check(edited(whole, 1, swap("0D", "1D")))
    assert ">>0D<<" in str(caught.value) and ">>1D<<" in str(caught.value)


def test_a_large_schedule_is_proven_and_timed_in_seconds():
    schedule = generate("interleaved", stages=64, microbatches=1024, chunks=2)
    start = time.process_time()
    whole = lower(schedule, tied=True, reduce=True)
    check(whole)
    timing = clock(whole)
    assert time.process_time() - start < 10
    assert timing.bubble_ideal == pytest.approx(63 / (2 * 1024))
