"""POP's factors, late partners and stragglers against what a sheet of paper gives for the same trace."""

import math

import pytest
from hand_made import PIPE, collective, message, pipe, write
from hand_made_waits import COLLECTIVE, RECEIVE, SEND, WAIT, B, F, U, described, exactly, one_late, opened, there_and_back

from hpcpar.analyse.bandwidth import bandwidth
from hpcpar.analyse.critical import critical_path
from hpcpar.analyse.late import waiting
from hpcpar.analyse.pop import efficiencies, useful_s
from hpcpar.analyse.replay import replay
from hpcpar.trace.schema import Kind, Operation

# POP


def test_the_factors_of_a_pipeline(tmp_path):
    # useful 2 + 2 + 2 and 2 + 3 + 2 of 11 ms; without the network F 2 to 4, I to 7 and B 7 to 9: 9 ms
    found = efficiencies(*opened(there_and_back(tmp_path)))
    exactly(found, runtime_s=0.011, ideal_s=0.009, parallel=6.5 / 11, load_balance=6.5 / 7, communication=7 / 11)
    exactly(found, serialisation=7 / 9, transfer=9 / 11, computing=1.0, unknown=0.0)
    assert found["useful_s"] == pytest.approx({"mean": 0.0065, "most": 0.007, "rank": 1}) and found["why"] is None


def test_the_factors_of_an_all_reduce(tmp_path):
    found = efficiencies(*opened(one_late(tmp_path)))
    exactly(found, parallel=4 / 6, load_balance=4 / 5, communication=5 / 6, serialisation=1.0, transfer=5 / 6)


@pytest.mark.parametrize("make", [there_and_back, one_late])
def test_each_factor_is_the_product_of_those_below_it(tmp_path, make):
    found = efficiencies(*opened(make(tmp_path)))
    assert found["parallel"] == pytest.approx(found["load_balance"] * found["communication"], rel=1e-14)
    assert found["communication"] == pytest.approx(found["serialisation"] * found["transfer"], rel=1e-14)


def test_what_lies_between_actions_is_useful_but_no_compute(tmp_path):
    ranks = [[(1, F, 0, 4), (1, F, 6, 8), (1, Kind.RECOMPUTE, 6, 7)]]
    found = efficiencies(*opened(write(tmp_path, ranks)))
    exactly(found, parallel=1.0, serialisation=1.0, transfer=1.0, computing=6 / 8)


def test_a_wait_inside_a_compute_event_is_neither(tmp_path):
    ranks = [[(1, B, 0, 10), (1, WAIT, 2, 5, {**collective(8), "stage": 0}), (1, COLLECTIVE, 2, 5, {**collective(8), "stage": 0})]]
    found = efficiencies(*opened(write(tmp_path, ranks, described())))
    exactly(found, parallel=0.7, computing=1.0)


def test_a_blocking_call_is_communication(tmp_path):
    ranks = [[(1, F, 0, 2 + late), (1, COLLECTIVE, 2 + late, 6, collective(8)), (1, U, 6, 8)] for late in (0, 2)]
    _, found = opened(write(tmp_path, ranks, described(dp=2)))
    assert useful_s(found).tolist() == pytest.approx([0.004, 0.006])
    assert replay(found) == pytest.approx(0.006)  # both enter at 4 at the latest


def test_a_wait_for_a_copy_is_not_useful_and_stays_in_the_replay(tmp_path):
    ranks = [[(1, F, 0, 4), (1, WAIT, 4, 7, {"operation": Operation.TO_HOST, "bytes": 8}), (1, F, 7, 10)]]
    found = efficiencies(*opened(write(tmp_path, ranks)))
    exactly(found, parallel=0.7, serialisation=0.7, transfer=1.0, unknown=0.0)


def test_the_end_of_a_rank_that_is_done_early_is_not_useful(tmp_path):
    _, found = opened(write(tmp_path, [[(1, F, 0, 10)], [(1, F, 2, 5)]], described(dp=2)))
    assert useful_s(found).tolist() == pytest.approx([0.010, 0.003])


def test_the_warm_up_and_what_lies_between_steps_take_no_time(tmp_path):
    ranks = [[], []]
    for step, at in ((1, 0.0), (2, 50.0), (3, 90.0)):
        for mine, events in zip(ranks, there_and_back(None, step, at), strict=True):
            mine += events
        if step == 2:
            for mine in ranks:
                mine += [(2, Kind.EVALUATE, 62, 80), (2, Kind.RECEIVE, 63, 70, message(0, 8)), (2, Kind.WAIT, 63, 70, message(0, 8))]
    trace, found = opened(write(tmp_path, ranks, described(pp=2)))
    got = efficiencies(trace, found)
    exactly(got, runtime_s=0.022, ideal_s=0.018, parallel=13.5 / 22, unknown=0.0)  # between its steps rank 1 has 1 ms for itself
    exactly(waiting(found, 2), late_sender_s=0.006, transfer_s=0.002)
    exactly(critical_path(trace, found)["parts"], F=4 / 11, I=3 / 11, B=2 / 11, transfer_messages=2 / 11)


# what the trace does not tell


def test_an_unknown_partner_makes_the_split_unknown(tmp_path):
    ranks = there_and_back(None)
    ranks[1].append((1, WAIT, 10, 11, message(0, 64)))  # no call goes with it
    trace, found = opened(write(tmp_path, ranks, described(pp=2)))
    got = efficiencies(trace, found)
    exactly(got, parallel=6.5 / 11, communication=7 / 11, unknown=1 / 9)
    assert got["serialisation"] is got["transfer"] is got["ideal_s"] is None and "11% of the waiting" in got["why"]
    exactly(waiting(found, 1), unknown_s=0.001, late_sender_s=0.006, transfer_s=0.002)
    path = critical_path(trace, found)
    assert sum(path["parts"].values()) == pytest.approx(1)


def test_a_missing_rank_makes_the_split_unknown(tmp_path):
    there_and_back(tmp_path)
    (tmp_path / "trace.00001.h5").unlink()
    trace, found = opened(tmp_path)
    got = efficiencies(trace, found)
    exactly(got, parallel=6 / 11, unknown=1.0)
    assert got["serialisation"] is got["transfer"] is None and "1 of 2 ranks are missing" in got["why"]
    assert waiting(found, 1)["pairs"] == []


def test_a_circle_is_refused_and_not_walked_for_ever(tmp_path):
    def crossed(peer):  # each sends only when what the other one sends at that instant has come
        to = message(peer, 8)
        return [(1, RECEIVE, 0, 2, to), (1, WAIT, 0, 2, to), (1, SEND, 2, 3, to), (1, F, 0, 9)]

    got = efficiencies(*opened(write(tmp_path, [crossed(1), crossed(0)], described(pp=2))))
    assert got["ideal_s"] is None and "circle" in got["why"]
    exactly(got, parallel=7 / 9)


def test_an_exchange_in_no_time_is_no_circle(tmp_path):
    def at_once(peer):
        to = message(peer, 8, Operation.TIED)
        return [(1, F, 0, 4), (1, SEND, 4, 4, to), (1, RECEIVE, 4, 4, to), (1, F, 4, 6)]

    _, found = opened(write(tmp_path, [at_once(1), at_once(0)], described(pp=2)))
    assert replay(found) == pytest.approx(0.006)


def test_a_trace_without_steps_has_no_factors(tmp_path):
    trace, found = opened(pipe(tmp_path, steps=0))
    assert efficiencies(trace, found) is waiting(found, 0) is critical_path(trace, found) is None
    assert bandwidth(found) == {"operations": [], "pairs": []}


# when a message is needed


def test_a_message_that_came_in_time_is_needed_by_the_compute_of_its_microbatch(tmp_path):
    # seen at 5, in the middle of F1; needed by B0 at 8. Without the network rank 0 sends at 4, and rank 1 is at 3 of its F1 then.
    to = {"stage": 1, "microbatch": 0}
    ranks = [
        [(1, F, 0, 4), (1, SEND, 4, 5, {**message(1, 8), "stage": 0, "microbatch": 0})],
        [
            (1, RECEIVE, 0, 5, {**message(0, 8), **to}),
            (1, RECEIVE, 0, 4, message(0, 16, Operation.KEYS_VALUES)),
            (1, WAIT, 0, 4, message(0, 16, Operation.KEYS_VALUES)),
            (1, F, 4, 8, {"stage": 1, "microbatch": 1}),
            (1, F, 8, 9, to),
        ],
    ]
    ranks[0].append((1, SEND, 0, 4, message(1, 16, Operation.KEYS_VALUES)))
    _, found = opened(write(tmp_path, ranks, described(pp=2)))
    assert replay(found) == pytest.approx(0.005)  # F1 0 to 4, the message is there at 4, F0 4 to 5; at its end it would be 8


def test_a_sum_that_ended_in_time_is_needed_by_the_update(tmp_path):
    at = {"stage": 0}
    key = message(1, 16, Operation.KEYS_VALUES)
    ranks = [
        [
            (1, RECEIVE, 0, 3, key),
            (1, WAIT, 0, 3, key),
            (1, B, 3, 9, at),
            (1, COLLECTIVE, 4, 8, {**collective(8), **at}),
            (1, U, 9, 10, at),
        ],
        [
            (1, SEND, 0, 3, message(0, 16, Operation.KEYS_VALUES)),
            (1, B, 0, 7, at),
            (1, COLLECTIVE, 7, 8, {**collective(8), **at}),
            (1, WAIT, 7, 8, {**collective(8), **at}),
            (1, U, 8, 8.5, at),
        ],
    ]
    _, found = opened(write(tmp_path, ranks, described(dp=2)))
    assert replay(found) == pytest.approx(0.008)  # B 0 to 6, the other one enters at 7, U 7 to 8; needed at its end it would be 9


# late partners, stragglers


def test_late_senders_by_pair(tmp_path):
    _, found = opened(there_and_back(tmp_path))
    got = waiting(found, 1)
    exactly(got, late_sender_s=0.006, late_receiver_s=0.0, late_collective_s=0.0, transfer_s=0.002, unknown_s=0.0)
    first, second = got["pairs"]
    assert (first["rank"], first["waits_for"], first["kind"], first["waits"]) == (0, 1, "late_sender", 1)
    exactly(first, late_s=0.004, transfer_s=0.001)
    assert (second["rank"], second["waits_for"]) == (1, 0)
    exactly(second, late_s=0.002, transfer_s=0.001)


def test_a_late_receiver(tmp_path):
    ranks = [
        [(1, F, 0, 1), (1, SEND, 1, 6, message(1, 8)), (1, WAIT, 2, 6, message(1, 8)), (1, F, 6, 7)],
        [(1, F, 0, 5), (1, RECEIVE, 5, 6, message(0, 8)), (1, WAIT, 5, 6, message(0, 8)), (1, F, 6, 7)],
    ]
    _, found = opened(write(tmp_path, ranks, described(pp=2)))
    got = waiting(found, 1)
    exactly(got, late_receiver_s=0.003, late_sender_s=0.0, transfer_s=0.002)
    assert [(p["rank"], p["waits_for"], p["kind"]) for p in got["pairs"] if p["late_s"]] == [(0, 1, "late_receiver")]


def test_a_wait_in_which_both_ends_fall_was_for_what_came_in(tmp_path):
    # the two of tied weights are alike but for their kind
    def exchange(peer):
        tied = message(peer, 64, Operation.TIED)
        return [(1, RECEIVE, 1, 4, tied), (1, SEND, 1, 3, tied), (1, WAIT, 2, 4, tied), (1, WAIT, 4, 5, tied), (1, F, 0, 1), (1, F, 5, 6)]

    _, found = opened(write(tmp_path, [exchange(1), exchange(0)], described(pp=2)))
    kinds = {Kind(k).name: w for k, w in zip(found.calls["kind"], found.waited, strict=True)}
    assert kinds == {"RECEIVE": 2_000_000, "SEND": 0} and found.unknown_s() == pytest.approx(0.002)


def test_stragglers_of_an_all_reduce(tmp_path):
    _, found = opened(one_late(tmp_path))
    got = waiting(found, 1)
    exactly(got, late_collective_s=0.003, transfer_s=0.003, late_sender_s=0.0)
    zero, one, two = got["stragglers"]
    exactly(zero, collectives=1, last=1, share=1.0, caused_s=0.003, ahead_s=0.002)
    exactly(one, collectives=1, last=0, share=0.0, caused_s=0.0)
    assert one["ahead_s"] is two["ahead_s"] is None


def test_nobody_is_last_where_all_come_at_once(tmp_path):
    ranks = [[(1, F, 0, 2), (1, COLLECTIVE, 2, 4, collective(8)), (1, U, 4, 5)] for _ in range(2)]
    _, found = opened(write(tmp_path, ranks, described(dp=2)))
    assert [(s["last"], s["caused_s"]) for s in waiting(found, 1)["stragglers"]] == [(0, 0), (0, 0)]


def test_waits_of_a_pipeline_whose_receives_are_not_all_recorded(tmp_path):
    trace, found = opened(pipe(tmp_path, description=PIPE))
    got = efficiencies(trace, found)
    assert got["serialisation"] is None and 0 < got["unknown"] <= 1 and math.isfinite(got["parallel"])
