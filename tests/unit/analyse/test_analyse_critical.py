"""The critical path and bandwidths against what a sheet of paper gives for the same trace."""

import pytest
from hand_made import message, write
from hand_made_waits import RECEIVE, SEND, WAIT, F, described, exactly, one_late, opened, there_and_back

from hpcpar.analyse.bandwidth import bandwidth
from hpcpar.analyse.critical import critical_path

# the critical path


def test_the_critical_path_of_a_pipeline(tmp_path):
    path = critical_path(*opened(there_and_back(tmp_path)))
    exactly(path["parts"], F=4 / 11, I=3 / 11, B=2 / 11, W=0.0, transfer_messages=2 / 11, transfer_collectives=0.0, wait=0.0, idle=0.0)
    assert path["changes"] == 2 and path["length_s"] == 0.011
    assert {row["rank"]: row["share"] for row in path["ranks"]} == pytest.approx({0: 4 / 11, 1: 5 / 11})


def test_the_critical_path_goes_through_whoever_enters_last(tmp_path):
    path = critical_path(*opened(one_late(tmp_path)))
    exactly(path["parts"], F=4 / 6, update=1 / 6, transfer_collectives=1 / 6)
    assert [row["rank"] for row in path["ranks"]] == [0]


def test_a_wait_for_what_was_on_its_way_is_transfer(tmp_path):
    ranks = [
        [(1, F, 0, 1), (1, SEND, 1, 6, message(1, 8)), (1, F, 1, 4)],
        [(1, F, 0, 3), (1, RECEIVE, 0, 6, message(0, 8)), (1, WAIT, 3, 6, message(0, 8)), (1, F, 6, 8)],
    ]
    path = critical_path(*opened(write(tmp_path, ranks, described(pp=2))))
    exactly(path["parts"], F=5 / 8, transfer_messages=3 / 8)
    assert path["changes"] == 0


def test_a_path_ends_where_two_wait_for_each_other_at_one_instant(tmp_path):
    def crossed(peer):
        to = message(peer, 8)
        return [(1, F, 0, 2), (1, RECEIVE, 2, 4, to), (1, WAIT, 2, 4, to), (1, SEND, 4, 5, to), (1, F, 4, 6)]

    path = critical_path(*opened(write(tmp_path, [crossed(1), crossed(0)], described(pp=2))))
    exactly(path["parts"], F=4 / 6, transfer_messages=2 / 6)


# bandwidth


def test_bandwidth_begins_when_both_are_there(tmp_path):
    _, found = opened(there_and_back(tmp_path))
    got = bandwidth(found)
    exactly(got["operations"][0], calls=1, bytes=100, seconds=0.001, bytes_per_s=1e5, waited_calls=1, waited_bytes_per_s=1e5)
    assert [(r["source"], r["destination"]) for r in got["pairs"]] == [(0, 1), (1, 0)]
    assert [r["bytes_per_s"] for r in got["pairs"]] == pytest.approx([1e5, 1e5])
    (row,) = bandwidth(opened(one_late(tmp_path / "sum"))[1])["operations"]
    exactly(row, calls=3, bytes=900, seconds=0.003, bytes_per_s=3e5)  # from 4 to 5 on each rank
    assert (row["kind"], row["operation"], row["axis"]) == ("collective", "allreduce", "dp")


def test_what_nobody_waited_for_has_a_lower_bound_alone(tmp_path):
    ranks = [
        [(1, F, 0, 1), (1, SEND, 1, 6, message(1, 800)), (1, F, 1, 8)],
        [(1, F, 0, 7), (1, RECEIVE, 2, 6, message(0, 800)), (1, F, 7, 8)],
    ]
    (row,) = bandwidth(opened(write(tmp_path, ranks, described(pp=2)))[1])["operations"]
    exactly(row, seconds=0.004, bytes_per_s=2e5, waited_calls=0)
    assert row["waited_bytes_per_s"] is None
