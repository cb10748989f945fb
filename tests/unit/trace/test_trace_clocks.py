"""Clocks that are seconds apart and drift: put on one by points or by messages, or refused with the numbers."""

import numpy as np
import pytest

import hpcpar.trace
from hpcpar.errors import PlanError
from hpcpar.trace.index import write_index
from hpcpar.trace.refine import Moves, fitted
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

S = 1_000_000_000
SKEW, DRIFT = 3 * S, 1e-4


def write(folder, ranks, local=None, points=None, length=40 * S, ways="both", meetings=0, trip=20_000, seed=1, count=200):
    """Ranks in a row that send to each other; `local[rank]` turns true times into those of its clock, `points[rank]` holds the true times
    of its clock points. Returns the true times of each rank's events."""
    draw, local, points = np.random.default_rng(seed), local or {}, points or {}
    events = [[] for _ in range(ranks)]

    def message(a, b, at, microbatch):
        late = int(draw.exponential(trip))
        facts = {"operation": Operation.ACTIVATION, "axis": Axis.PP, "microbatch": microbatch, "bytes": 8}
        events[a].append((Kind.SEND, at, at + trip // 2, {**facts, "peer": b}))
        events[b].append((Kind.RECEIVE, at - trip, at + trip + late, {**facts, "peer": a}))

    for k, at in enumerate(np.sort(draw.integers(0, length, count)).tolist()):
        for rank in range(ranks - 1):
            if ways == "both" or (ways == "up") == bool(rank < ranks - 1):
                message(rank, rank + 1, at, k)
            if ways in ("both", "down"):
                message(rank + 1, rank, at + 5 * trip, k)
    for at in np.linspace(0, length, meetings).astype(int).tolist():
        come = at + draw.integers(0, trip, ranks)
        for rank in range(ranks):
            end = int(come.max() + draw.integers(trip // 2, trip))
            events[rank].append((Kind.COLLECTIVE, int(come[rank]), end, {"operation": Operation.LOSS, "axis": Axis.WORLD, "bytes": 8}))
    for rank in range(ranks):
        events[rank].sort(key=lambda e: e[2])
        clock = local.get(rank, lambda t: t)
        with Writer(folder, rank, ranks, {"hosts": ["h"]}) as writer:
            writer.step = 1
            for true in points.get(rank, ()):
                writer.clock(round(clock(true)), round(true - clock(true)), 1000)
            for kind, start, end, facts in events[rank]:
                writer.record(kind, round(clock(start)), round(clock(end)), **facts)
    write_index(folder, ranks, {"hosts": ["h"]})
    return [np.array([(e[1], e[2]) for e in mine]) for mine in events]


def skewed(t):
    return t + SKEW + DRIFT * t


def off(folder, true):
    """The largest error in ns of a corrected time, after one offset that all ranks share."""
    trace = hpcpar.trace.open(folder)
    apart = [np.stack([trace.events(r)["start"], trace.events(r)["end"]], axis=1) - true[r] for r in trace.present]
    common = np.median(np.concatenate(apart))
    return trace, max(float(np.abs(a - common).max()) for a in apart)


def in_order(trace):
    pairs = trace.messages().pairs
    assert len(pairs) and (pairs["received"] >= pairs["sent"]).all() and (np.diff(pairs["received"]) >= 0).all()
    for name, rank, row, column in (("sent", "source", "send", "start"), ("received", "destination", "receive", "end")):
        for r in trace.present:  # a message bears the times that the events have
            mine = pairs[pairs[rank] == r]
            assert np.array_equal(mine[name], trace.events(r)[mine[row]][column])
    assert trace.clocks["left_s"] == 0


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_seconds_and_drift_come_out_right_by_points(tmp_path, rank):
    points = dict.fromkeys(range(3), (0, 20 * S, 41 * S))
    true = write(tmp_path, 3, {rank: skewed}, points)
    trace, error = off(tmp_path, true)
    in_order(trace)
    assert error <= 2 and trace.clocks["bound_s"] == 1e-6 and trace.clocks["by_messages"] == {} and trace.clocks["moved_s"] == 0


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_seconds_and_drift_come_out_right_by_messages(tmp_path, rank):
    true = write(tmp_path, 3, {rank: skewed})
    trace, error = off(tmp_path, true)
    in_order(trace)
    room = trace.clocks["by_messages"]
    assert error <= 20_000 and len(room) == (2 if rank == 1 else 1)  # without rank 1, 0 and 2 have nothing to tell each other
    assert trace.clocks["bound_s"] is None and error <= 2e9 * max(room.values()) + 1000


def test_all_ranks_apart_come_out_right_by_messages(tmp_path):
    true = write(tmp_path, 5, {r: lambda t, r=r: t + (-1) ** r * r * SKEW + r * 2e-5 * t for r in range(5)})
    trace, error = off(tmp_path, true)
    in_order(trace)
    assert error <= 5 * 20_000 and len(trace.clocks["by_messages"]) >= 3


def test_meetings_of_all_ranks_tell_the_clocks_too(tmp_path):
    true = write(tmp_path, 4, {2: skewed}, count=0, meetings=60)
    trace, error = off(tmp_path, true)
    assert error <= 40_000 and list(trace.clocks["by_messages"]) == ["2"] and trace.clocks["meetings"] == 60


def test_a_drift_behind_the_last_point_comes_out_right_by_messages(tmp_path):
    """What a run that was killed leaves: a point at its start alone."""
    true = write(tmp_path, 2, {1: skewed}, {0: (0,), 1: (0,)})
    trace, error = off(tmp_path, true)
    in_order(trace)
    assert error <= 20_000  # 4 ms without a line


@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_that_cannot_be_told_is_refused(tmp_path, sign):
    write(tmp_path, 2, {1: lambda t: t - sign * SKEW}, ways="up" if sign > 0 else "down")
    with pytest.raises(PlanError, match=r"arrives (2\.99|3)\S* s before it was sent.*0 clock points.*both ways are needed") as e:
        hpcpar.trace.open(tmp_path)
    assert "\n" not in str(e.value)


def test_what_points_miss_by_a_little_is_moved(tmp_path):
    true = write(tmp_path, 2, {1: lambda t: t - 15_000}, trip=10_000, length=S // 10, count=100)
    for rank in (0, 1):  # points that say they may be 40 us wrong, and are 15
        with Writer(tmp_path, rank, 2, {"hosts": ["h"]}, after=1) as writer:
            writer._session = 0
            writer.clock(0, 0, 40_000)
    trace, error = off(tmp_path, true)
    in_order(trace)
    assert trace.clocks["by_messages"] == {} and 0 < trace.clocks["moved_s"] <= 15e-6 and error <= 15_000
    for rank in (0, 1):
        starts = trace.events(rank)["start"]
        assert (np.diff(starts[np.argsort(true[rank][:, 0], kind="stable")]) >= 0).all()  # the order of its own events stays


@pytest.mark.parametrize("length, jump", [(40 * S, SKEW), (S // 10, S // 200)])
def test_a_clock_that_jumps_is_refused(tmp_path, length, jump):
    write(tmp_path, 2, {1: lambda t: t + (jump if t > length // 2 else 0)}, length=length)
    with pytest.raises(PlanError, match=r"arrives \S+ s before it was sent; no offsets that change by less than 1% .* a clock has jumped"):
        hpcpar.trace.open(tmp_path)


def test_sizes_that_do_not_agree_and_ends_alone_are_counted(tmp_path):
    for rank, (kind, size) in enumerate(((Kind.SEND, 8), (Kind.RECEIVE, 9))):
        with Writer(tmp_path, rank, 2, {}) as writer:
            facts = {"operation": Operation.TIED, "axis": Axis.TIED, "peer": 1 - rank}
            writer.record(kind, 1, 2, bytes=size, **facts)
            if rank:
                writer.record(kind, 3, 4, bytes=8, **facts)
            writer.record(kind, 5, 6, peer=1 - rank, operation=Operation.PUSH if rank == 0 else Operation.PULL, bytes=8)
    found = hpcpar.trace.open(tmp_path).messages()
    assert found.alone == {"sends": 0, "receives": 1, "sizes": 1} and not len(found.pairs)


def test_messages_are_matched_in_the_order_of_posting_and_by_channel(tmp_path):
    """Two borders between the same ranks are two channels; completion has no say."""

    def put(writer, kind, start, end, operation, stage, microbatch, peer):
        writer.record(kind, start, end, stage, microbatch, operation=operation, axis=Axis.PP, peer=peer, bytes=4)

    A, G = Operation.ACTIVATION, Operation.GRADIENT
    with Writer(tmp_path, 0, 2, {}) as w:  # stages 0 and 2; row: what
        put(w, Kind.SEND, 20, 21, A, 2, 0, 1)  # 0: over border 2
        put(w, Kind.SEND, 10, 30, A, 0, 0, 1)  # 1: over border 0, posted first, left last
        put(w, Kind.RECEIVE, 5, 60, G, 0, 0, 1)  # 2: over border 0
        put(w, Kind.SEND, 70, 71, Operation.NORM, 0, -1, 1)  # 3
        put(w, Kind.SEND, 65, 72, Operation.NORM, 0, -1, 1)  # 4: posted before 3
    with Writer(tmp_path, 1, 2, {}) as w:  # stages 1 and 3
        put(w, Kind.RECEIVE, 1, 31, A, 3, 0, 0)  # 0
        put(w, Kind.RECEIVE, 2, 32, A, 1, 0, 0)  # 1
        put(w, Kind.SEND, 50, 51, G, 1, 0, 0)  # 2
        put(w, Kind.RECEIVE, 61, 75, Operation.NORM, 3, -1, 0)  # 3: posted before 4
        put(w, Kind.RECEIVE, 62, 76, Operation.NORM, 3, -1, 0)  # 4
    pairs = hpcpar.trace.open(tmp_path).messages().pairs
    found = {(int(p["source"]), int(p["send"]), int(p["receive"])) for p in pairs}
    assert found == {(0, 0, 0), (0, 1, 1), (1, 2, 2), (0, 4, 3), (0, 3, 4)}


def test_sessions_are_matched_apart_and_from_the_last(tmp_path):
    facts = {"operation": Operation.TIED, "axis": Axis.TIED, "bytes": 4}
    for rank, kind, starts in ((0, Kind.SEND, (None, 1)), (1, Kind.RECEIVE, (1,))):  # rank 1 lost its first file
        for after in starts:
            with Writer(tmp_path, rank, 2, {}, after=after) as w:
                w.step = 1 if after is None else 2
                at = 10**12 if after is None else 5  # the first start was on a clock of its own
                w.record(kind, at, at + 1, peer=1 - rank, **facts)
    (pair,) = hpcpar.trace.open(tmp_path).messages().pairs
    assert (pair["send"], pair["receive"], pair["sent"], pair["session"]) == (1, 0, 5, -1)


# the arithmetic


def test_a_line_has_most_room_and_is_level_where_that_does():
    x = np.arange(10.0) * 1e9
    line = fitted(np.stack([x, 5 + 1e-4 * x - 100], axis=1), np.stack([x, 5 + 1e-4 * x + 300], axis=1))
    assert (
        line.drift == pytest.approx(1e-4, rel=1e-6)
        and line.offset == pytest.approx(105, abs=2)
        and line.room_ns == pytest.approx(200, abs=2)
    )
    level = fitted(np.array([[0.0, -50], [1e9, 10]]), np.array([[0.0, 100], [1e9, 30]]))
    assert level.drift == 0 and level.offset == 20


def test_moves_are_the_steepest_that_keep_order():
    draw = np.random.default_rng(3)
    at, by = draw.integers(0, 10**6, 30), draw.integers(0, 2000, 30)
    moves = Moves()
    moves.add(at[:20], by[:20])
    moves.add(at[20:], by[20:])
    times = np.sort(draw.integers(-(10**5), 11 * 10**5, 500))
    got = times.copy()
    moves.apply(got)
    naive = np.array([max(0.0, *(b - 0.01 * abs(int(t) - int(a)) for a, b in zip(at, by, strict=True))) for t in times])
    assert np.abs(got - times - naive).max() <= 1 and (np.diff(got) >= 0).all()
    same = at.copy()
    moves.apply(same)
    assert (same - at >= by).all()
