"""Lanes: every event in one, slices nest or are disjoint, as few lanes as can be."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.draw.exports.lanes import LANES, apart, edges, lanes, nested
from hpcpar.trace.schema import EVENT, Kind

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=25)


def arrays(drawn, longest_first):
    start = np.array([s for s, _ in drawn], np.int64)
    end = start + np.array([n for _, n in drawn], np.int64)
    order = np.lexsort((-end if longest_first else end, start))
    return start[order], end[order]


def nest_or_disjoint(a, b):
    (_, e), (t, f) = sorted((a, b), key=lambda x: (x[0], -x[1]))
    return e <= t or f <= e


@given(spans)
def test_slices_of_a_lane_are_disjoint_and_lanes_are_few(drawn):
    start, end = arrays(drawn, longest_first=False)
    lane = apart(start, end)
    for i in range(len(start)):
        for k in range(i):
            assert lane[i] != lane[k] or end[k] <= start[i]
    under_way = [sum(s <= t < max(e, s + 1) for s, e in zip(start, end, strict=True)) for t in range(41)]
    instants = (start == end).any()  # one may need a lane beside a slice of its own time
    assert len(set(lane.tolist())) <= max(under_way, default=0) and (instants or lane.max(initial=-1) + 1 == max(under_way))


@given(spans)
def test_slices_of_a_lane_nest(drawn):
    start, end = arrays(drawn, longest_first=True)
    lane = nested(start, end)
    both = list(zip(start.tolist(), end.tolist(), strict=True))
    for i in range(len(start)):
        for k in range(i):
            assert lane[i] != lane[k] or nest_or_disjoint(both[i], both[k])
    if all(nest_or_disjoint(a, b) for a in both for b in both):
        assert not lane.any()


@given(spans)
def test_edges_close_what_began_last(drawn):
    start, end = arrays(drawn, longest_first=True)
    one = nested(start, end) == 0
    start, end = start[one], end[one]
    stack, times, seen = [], [], set()
    for time, begins, i in edges(start, end):
        times.append(time)
        if begins:
            assert time == start[i]
            stack.append(i)
        else:
            assert stack.pop() == i and time == end[i]
            seen.add(i)
    assert not stack and len(seen) == len(start) and times == sorted(times)


def test_every_kind_has_a_lane_and_an_unknown_one_too():
    assert {k for kinds, _ in LANES.values() for k in kinds} == set(Kind)
    events = np.zeros(4, EVENT)
    events["kind"] = [Kind.SEND, 200, Kind.SEND, Kind.F]
    events["start"], events["end"] = [0, 0, 1, 0], [5, 1, 6, 1]
    assert [(lane.name, lane.rows.tolist()) for lane in lanes(events)] == [
        ("compute", [3]),
        ("sends", [0]),
        ("sends 2", [2]),
        ("other", [1]),
    ]


def test_what_begins_together_nests_in_one_lane():
    events = np.zeros(3, EVENT)
    events["kind"], events["start"], events["end"] = [Kind.RECOMPUTE, Kind.B, Kind.F], [0, 0, 7], [3, 7, 9]
    (lane,) = lanes(events)
    assert lane.name == "compute" and lane.rows.tolist() == [1, 0, 2]
