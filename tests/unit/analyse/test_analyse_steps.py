"""When steps begin and end, which of them are measured, and which events are theirs."""

import pytest
from hand_made import MS, collective, message, pipe, write

import hpcpar.trace
from hpcpar.analyse.steps import chosen_steps, of_steps, steps, summary
from hpcpar.analyse.volumes import volumes
from hpcpar.errors import PlanError
from hpcpar.trace.schema import Kind, Operation


def opened(folder):
    trace = hpcpar.trace.open(folder)
    return trace, steps(trace)


def test_a_step_lasts_from_its_first_event_to_its_last(tmp_path):
    _, found = opened(pipe(tmp_path))
    assert found.seconds.tolist() == [0.01] * 3 and found.measured.tolist() == [False, True, True]
    assert summary(found) == {
        "count": 3,
        "first": 1,
        "last": 3,
        "warm_up": 1,
        "resumed": [],
        "mean_s": 0.01,
        "min_s": 0.01,
        "max_s": 0.01,
        "std_s": 0.0,
    }


def test_the_warm_up_is_left_out_of_the_mean(tmp_path):
    ranks = [[(1, Kind.F, 0, 100), (2, Kind.F, 100, 110), (3, Kind.F, 110, 130)]]
    assert summary(opened(write(tmp_path, ranks))[1])["mean_s"] == pytest.approx(0.015)


def test_a_single_step_is_measured_and_said_to_be_the_warm_up(tmp_path):
    found = summary(opened(write(tmp_path, [[(1, Kind.F, 0, 100)]]))[1])
    assert found["mean_s"] == pytest.approx(0.1) and found["warm_up"] is None


def test_steps_that_overlap_share_no_time(tmp_path):
    ranks = [[(1, Kind.F, 0, 10), (2, Kind.F, 10, 20)], [(1, Kind.F, 5, 14), (2, Kind.F, 14, 30)]]
    _, found = opened(write(tmp_path, ranks))
    assert (found.windows // MS).tolist() == [[0, 14], [14, 30]]
    assert (found.first // MS).tolist() == [0, 10]


def test_evaluation_and_checkpoints_and_what_follows_belong_to_no_step(tmp_path):
    ranks = [
        [
            (0, Kind.F, -50, -40),
            (1, Kind.F, 0, 10),
            (1, Kind.F, 12, 20),  # recorded inside the evaluation, which ends later
            (1, Kind.EVALUATE, 11, 30),
            (1, Kind.CHECKPOINT, 30, 50),
            (1, Kind.COLLECTIVE, 50, 55),
            (2, Kind.F, 60, 70),
            (2, Kind.CHECKPOINT, 70, 90),
            (2, Kind.COLLECTIVE, 91, 92),
        ]
    ]
    _, found = opened(write(tmp_path, ranks))
    assert (found.windows // MS).tolist() == [[0, 10], [60, 70]]


def test_messages_of_an_evaluation_are_not_the_step_s(tmp_path):
    ranks = [
        [
            (1, Kind.F, 0, 10),
            (1, Kind.SEND, 9, 13, message(0, 8)),  # of the step: posted before its last compute event ended
            (1, Kind.COLLECTIVE, 10, 12, collective(8, Operation.LOSS)),
            (1, Kind.RECEIVE, 14, 19, message(0, 8)),
            (1, Kind.WAIT, 15, 19, message(0, 8)),
            (1, Kind.EVALUATE, 19, 30),
            (2, Kind.F, 40, 41),
            (2, Kind.RECEIVE, 41, 44, message(0, 8)),  # no evaluation follows
        ]
    ]
    trace, found = opened(write(tmp_path, ranks))
    assert (found.windows // MS).tolist() == [[0, 13], [40, 44]]
    assert [row["calls"] for row in volumes(trace, found)["operations"]] == [1, 1, 1]


def test_a_step_that_one_rank_lacks_is_not_counted(tmp_path):
    ranks = [[(1, Kind.F, 0, 1), (2, Kind.F, 1, 2), (3, Kind.F, 2, 3)], [(1, Kind.F, 0, 1), (2, Kind.F, 1, 2)]]
    assert opened(write(tmp_path, ranks))[1].numbers.tolist() == [1, 2]


def test_one_step_is_chosen_for_a_picture(tmp_path):
    trace, found = opened(pipe(tmp_path, steps=5))
    assert chosen_steps(trace, found) == (3, 3) and chosen_steps(trace, found, "2:4") == (2, 4)
    first, last, lanes = of_steps(trace, found, 3, 3)
    assert (first, last) == (60 * MS, 70 * MS)
    assert {rank: len(events) for rank, events in lanes.items()} == {0: 12, 1: 9}
    first, last, lanes = of_steps(trace, found, 2, 4)
    assert (first, last) == (40 * MS, 90 * MS)
    assert {rank: len(events) for rank, events in lanes.items()} == {0: 36, 1: 27}
    for wrong, why in (
        ("6", r"step 6 is not in .*1 to 5"),
        ("2:6", "step 6 is not"),
        ("a", "--step a: write"),
        ("3:2", "before it begins"),
    ):
        with pytest.raises(PlanError, match=why):
            chosen_steps(trace, found, wrong)
