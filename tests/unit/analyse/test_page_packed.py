"""The events of the page: packed and unpacked without a loss, merged where there are too many, and counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.draw.page.packed import TRACKS, pack, unpack
from hpcpar.trace.schema import EVENT, Kind

NAMES = ("kind", "operation", "axis", "stage", "microbatch", "version", "step", "peer", "bytes")


def lanes_of(seed, ranks, count, span=10**9, origin=-(10**6)):
    """Random events of `ranks` ranks, those of rank 1 none, in no order."""
    rng = np.random.default_rng(seed)
    out = {}
    for rank in range(ranks):
        events = np.zeros(0 if rank == 1 else count, EVENT)
        n = len(events)
        events["kind"] = rng.integers(1, len(Kind) + 1, n)
        events["start"] = origin + rng.integers(0, span, n)
        events["end"] = events["start"] + rng.integers(0, span // 10, n)
        for name, low, high in (("operation", 0, 63), ("axis", 0, 9), ("stage", -1, 300), ("microbatch", -1, 70000), ("version", -1, 9)):
            events[name] = rng.integers(low, high, n)
        events["step"], events["peer"], events["bytes"] = rng.integers(0, 5, n), rng.integers(-1, ranks, n), rng.integers(0, 1 << 52, n)
        out[rank] = events
    return out


def rows(packed):
    """Every event as (rank, start from the origin, duration, ...), sorted; their track is right."""
    u, out = unpack(packed), []
    for rank, track, first, count in packed["tracks"]:
        kinds = list(TRACKS.values())[track]
        for i in range(first, first + count):
            assert u["kind"][i] in kinds if kinds else u["kind"][i] not in (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)
            out.append((rank, int(u["start"][i]), int(u["duration"][i]), *(int(u[n][i]) for n in NAMES)))
        assert (np.diff(u["start"][first : first + count]) >= 0).all()
    return sorted(out)


def expected(lanes, origin):
    return sorted(
        (rank, int(e["start"]) - origin, int(e["end"] - e["start"]), *(int(e[n]) for n in NAMES)) for rank, v in lanes.items() for e in v
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 40))
def test_what_is_packed_is_unpacked(seed, ranks, count):
    lanes = lanes_of(seed, ranks, count)
    packed = pack(lanes, (0, 0))
    assert rows(packed) == expected(lanes, packed["origin"])
    assert packed["rows"] == packed["events"] == sum(map(len, lanes.values())) and packed["kept"]
    assert (unpack(packed)["count"] == 1).all()


def test_a_run_of_days_keeps_its_times_to_a_hundred_microseconds():
    day = 86_400 * 10**9
    lanes = lanes_of(3, 3, 50, span=3 * day)
    packed = pack(lanes, (0, 0))
    assert 1 < packed["quantum"] <= 100_000
    for found, real in zip(rows(packed), expected(lanes, packed["origin"]), strict=True):
        assert found[0] == real[0] and found[3:] == real[3:]
        assert 0 <= real[1] - found[1] < packed["quantum"] and 0 <= real[2] - found[2] < packed["quantum"]


def test_what_is_beyond_the_limit_is_merged_and_counted_and_the_window_is_kept():
    lanes = lanes_of(5, 4, 2000, span=10**8)
    window = (10**7, 2 * 10**7)
    packed = pack(lanes, window, most=3000, stretches=400)
    u = unpack(packed)
    whole = sum(map(len, lanes.values()))
    assert packed["kept"] and packed["events"] == whole == u["count"].sum() and packed["rows"] < whole / 2
    kept = {rank: e[(e["end"] > window[0]) & (e["start"] < window[1])] for rank, e in lanes.items()}
    assert not set(expected(kept, packed["origin"])) - set(rows(packed))
    assert u["bytes"].sum() == pytest.approx(sum(float(e["bytes"].sum()) for e in lanes.values()))
    assert packed["rows"] - sum(map(len, kept.values())) <= 400 + 4 * len(TRACKS)


def test_a_merged_bar_is_of_the_kind_that_lasts_longest():
    events = np.zeros(5, EVENT)
    events["kind"] = [Kind.F, Kind.B, Kind.F, Kind.B, Kind.WAIT]
    events["start"], events["end"] = [0, 10, 20, 30, 900], [6, 15, 26, 39, 1000]  # F 12, B 14; the wait begins in another stretch
    events["microbatch"], events["bytes"] = [0, 1, 2, 3, 4], [1, 2, 4, 8, 16]
    packed = pack({0: events}, (0, 0), most=3, stretches=8)
    u = unpack(packed)
    assert not packed["kept"] and packed["stretch"] == 501
    assert u["kind"].tolist() == [Kind.B, Kind.WAIT] and u["count"].tolist() == [4, 1]
    assert u["start"].tolist() == [0, 900] and u["duration"].tolist() == [39, 100]
    assert u["microbatch"].tolist() == [-1, 4] and u["bytes"].tolist() == [15, 16]


def test_a_window_of_too_many_events_is_merged_too():
    lanes = lanes_of(6, 2, 1000)
    packed = pack(lanes, (-(10**9), 10**10), most=100, stretches=40)
    assert not packed["kept"] and packed["rows"] <= 40 + 2 * len(TRACKS) and unpack(packed)["count"].sum() == 1000


def test_no_event_is_no_row():
    packed = pack({0: np.zeros(0, EVENT)}, (0, 0))
    assert packed["rows"] == 0 and len(unpack(packed)["start"]) == 0
