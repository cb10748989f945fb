"""The text forms of actions and schedules read back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES, Action, Kind, check, clock, generate, lower, parse
from hpcpar.schedule.text import dumps, loads, read, write

number = st.integers(0, 5000)
compute = st.builds(Action, st.sampled_from([Kind.F, Kind.I, Kind.W, Kind.B]), number, number, st.none() | number, st.none())
whole = st.builds(Action, st.sampled_from([Kind.U, Kind.D, Kind.T, Kind.N]), number, st.none(), st.none() | number, st.none())
message = st.builds(Action, st.sampled_from([Kind.SA, Kind.RA, Kind.SG, Kind.RG]), number, number, st.none(), number)


@given(compute | whole | message)
def test_an_action_reads_back(action):
    assert parse(str(action)) == action


@given(st.lists(compute | whole | message, max_size=8))
def test_actions_have_an_order(actions):
    ordered = sorted(actions)
    assert all(a <= b and not b < a for a, b in pairwise(ordered))
    assert all((a < b) != (a >= b) for a in actions for b in actions)


@pytest.mark.parametrize(
    ("word", "action"),
    [
        ("2F0", Action(Kind.F, 2, 0)),
        ("2F5@3", Action(Kind.F, 2, 5, 3)),
        ("2U4", Action(Kind.U, 2, None, 4)),
        ("2U", Action(Kind.U, 2)),
        ("2SA0>3", Action(Kind.SA, 2, 0, None, 3)),
        ("2RG0<3", Action(Kind.RG, 2, 0, None, 3)),
        ("0T", Action(Kind.T, 0)),
        ("12D7", Action(Kind.D, 12, None, 7)),
    ],
)
def test_the_words_of_the_language(word, action):
    assert parse(word) == action and str(action) == word


@pytest.mark.parametrize("word", ["", "F0", "2X0", "2F", "2F5@", "2SA0", "2SA0<3", "2RA0>1", "2U4@1", "2F0 2F1", "-1F0", "2F-1"])
def test_other_words_are_refused(word):
    with pytest.raises(PlanError):
        parse(word)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), st.integers(1, 9), st.integers(1, 3), st.integers(0, 5))
def test_a_schedule_reads_back(name, p, m, v, first):
    try:
        schedule = generate(name, stages=p, microbatches=m, chunks=v, first=first)
    except PlanError:
        return
    assert loads(dumps(schedule), "file") == schedule


def test_replicas_read_back():
    schedule = generate("pipedream", stages=3, microbatches=10, replicas=(3, 2, 1))
    assert loads(dumps(schedule), "file") == schedule


def test_a_schedule_written_by_hand_is_generated_checked_and_timed(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0, 0F1, 0B0, 0B1, 0U\n\n1F0,1B0,1F1,1B1,1U\n")
    schedule = generate(str(path), stages=2, microbatches=2)
    assert (schedule.name, schedule.stages, schedule.microbatches, schedule.chunks, schedule.rule) == ("mine", 2, 2, 1, "flush")
    program = lower(schedule, tied=True, reduce=True)
    check(program)
    assert clock(program).cost == 9.0
    twice = generate(str(path), stages=2, microbatches=2, accumulate=2)
    check(lower(twice))
    assert [str(a) for a in twice.ranks[0]] == ["0F0", "0F1", "0B0", "0B1", "0F2", "0F3", "0B2", "0B3", "0U"]


def test_write_and_read(tmp_path):
    schedule = generate("zb-v", stages=3, microbatches=5)
    write(schedule, tmp_path / "a.csv")
    assert read(tmp_path / "a.csv") == schedule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0F0,0B0,0U,0SA0>1", "line 1: 0SA0>1 is a message"),
        ("0F0,bad", "line 1: 'bad' is no action"),
        ("", "holds no schedule"),
        ("0U", "holds updates alone"),
        ("# rule=2bw\n0F0,0B0,0U", "names no version"),
        ("0F0,0F999999999,0B0,0U", "correct the numbers"),
        ("999999999F0,0B0,0U", "correct the numbers"),
        ("# stages=x\n0F0,0B0,0U", "no number"),
        ("# chunks=0\n0F0,0B0,0U", "chunks = 0"),
    ],
)
def test_what_is_no_schedule_is_refused(text, why):
    with pytest.raises(PlanError, match=why):
        loads(text, "file.csv")


def test_a_version_far_away_is_refused_at_once():
    with pytest.raises(PlanError, match="behind the last one, 1"):
        check(lower(loads("0F0@0,0B0@0,0U1,0F1@1,0B1@1,0U99999999999", "file")))


def test_a_file_for_other_numbers_is_refused(tmp_path):
    write(generate("1f1b", stages=2, microbatches=3), tmp_path / "a.csv")
    with pytest.raises(PlanError, match="written for 2 ranks, not for 4"):
        generate(str(tmp_path / "a.csv"), stages=4, microbatches=3)
    with pytest.raises(PlanError, match="written for 3 microbatches, not for 8"):
        generate(str(tmp_path / "a.csv"), stages=2, microbatches=8)
    with pytest.raises(PlanError, match="cannot read"):
        generate(str(tmp_path / "b.csv"), stages=2, microbatches=8)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["1f1b", "zb-v", "chimera", "pipedream", "pipedream-2bw"]), st.data())
def test_a_spoiled_file_is_refused_or_proven(name, data):
    """Whatever is dropped, doubled, exchanged or misspelt: a PlanError or a program that ends, never another failure."""
    lines = dumps(generate(name, stages=2, microbatches=3, batches=2)).splitlines()
    if data.draw(st.booleans()):
        lines = lines[1:]  # without the head
    rows = [line.split(",") for line in lines]
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.sampled_from([r for r in rows if r and not r[0].startswith("#")] or [["0F0"]]))
        i, j = (data.draw(st.integers(0, len(row) - 1)) for _ in range(2))
        what = data.draw(st.sampled_from(["drop", "double", "exchange", "misspell"]))
        if what == "drop" and len(row) > 1:
            del row[i]
        elif what == "double":
            row.insert(j, row[i])
        elif what == "exchange":
            row[i], row[j] = row[j], row[i]
        else:
            k = data.draw(st.integers(0, len(row[i])))
            row[i] = row[i][:k] + data.draw(st.sampled_from("0123FIWBU@x")) + row[i][k + 1 :]
    try:
        program = lower(loads("\n".join(",".join(r) for r in rows), "file"), tied=True, reduce=True, clip=True)
        check(program)
    except PlanError:
        return
    clock(program)
