"""Which calls belong together: channels, borders, communicators, sessions, and what stays without a partner."""

import numpy as np
import pytest
from hand_made import collective, config, message, write

import hpcpar.trace
from hpcpar.analyse.calls import pack
from hpcpar.analyse.exchanges import exchanges
from hpcpar.analyse.step_time import StepTime
from hpcpar.analyse.steps import steps, summary
from hpcpar.groups import groups
from hpcpar.mesh import Mesh
from hpcpar.run import expert
from hpcpar.schedule import generate
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

SEND, RECEIVE, COLLECTIVE, F = Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE, Kind.F
MS = 1_000_000


def opened(folder):
    trace = hpcpar.trace.open(folder)
    return exchanges(trace, steps(trace))


def partners(found):
    """{(rank, start ms): (rank, start ms)} of the two calls of each message."""
    out = {}
    for number in np.unique(found.instance[found.instance >= 0]):
        a, b = ((int(c["rank"]), int(c["start"]) // MS) for c in found.calls[found.instance == number])
        out[a], out[b] = b, a
    return out


def at(border_stage, microbatch, peer, operation=Operation.ACTIVATION):
    return {**message(peer, 8, operation), "stage": border_stage, "microbatch": microbatch}


def test_messages_over_two_borders_are_told_apart(tmp_path):
    # interleaved: rank 0 has stages 0 and 2, rank 1 has 1 and 3; rank 1 posts the receive of the second border first
    ranks = [
        [(1, SEND, 1, 2, at(0, 0, 1)), (1, SEND, 3, 4, at(2, 0, 1)), (1, F, 0, 9)],
        [(1, RECEIVE, 5, 8, at(3, 0, 0)), (1, RECEIVE, 6, 8, at(1, 0, 0)), (1, F, 0, 9)],
    ]
    assert partners(opened(write(tmp_path, ranks))) == {(0, 1): (1, 6), (1, 6): (0, 1), (0, 3): (1, 5), (1, 5): (0, 3)}


def test_a_gradient_goes_the_other_way_over_its_border(tmp_path):
    ranks = [
        [(1, RECEIVE, 1, 6, at(0, 0, 1, Operation.GRADIENT)), (1, RECEIVE, 2, 6, at(2, 0, 1, Operation.GRADIENT)), (1, F, 0, 9)],
        [(1, SEND, 3, 4, at(3, 0, 0, Operation.GRADIENT)), (1, SEND, 5, 6, at(1, 0, 0, Operation.GRADIENT)), (1, F, 0, 9)],
    ]
    assert partners(opened(write(tmp_path, ranks))) == {(0, 1): (1, 5), (1, 5): (0, 1), (0, 2): (1, 3), (1, 3): (0, 2)}


def test_messages_of_one_channel_are_in_order_of_their_posts(tmp_path):
    ring = message(1, 8, Operation.KEYS_VALUES)
    ranks = [
        [(1, SEND, 3, 9, ring), (1, SEND, 1, 9, ring), (1, F, 0, 9)],  # recorded in order of completion
        [(1, RECEIVE, 2, 9, {**ring, "peer": 0}), (1, RECEIVE, 4, 9, {**ring, "peer": 0}), (1, F, 0, 9)],
    ]
    assert partners(opened(write(tmp_path, ranks))) == {(0, 1): (1, 2), (1, 2): (0, 1), (0, 3): (1, 4), (1, 4): (0, 3)}


def test_what_has_no_partner_stays_alone(tmp_path):
    ranks = [
        [(1, SEND, 1, 2, message(1, 8)), (1, SEND, 2, 3, message(1, 8)), (1, SEND, 3, 4, message(1, 8, Operation.PUSH)), (1, F, 0, 9)],
        [(1, RECEIVE, 1, 4, message(0, 8)), (1, RECEIVE, 3, 4, message(0, 8, Operation.PUSH)), (1, F, 0, 9)],
    ]
    found = opened(write(tmp_path, ranks))
    assert partners(found) == {(0, 1): (1, 1), (1, 1): (0, 1)} and (found.instance < 0).sum() == 3
    assert found.cause[found.instance < 0].tolist() == [-1, -1, -1]


def test_each_communicator_counts_for_itself(tmp_path):
    # dp = 2 x pp = 2: ranks 0 and 1 hold stage 0, 2 and 3 stage 1; the norm is summed along pp
    def rank(dp_at, pp_at, stage):
        sums = [(1, COLLECTIVE, t, 9, {**collective(8), "stage": stage}) for t in dp_at]
        return [*sums, (1, COLLECTIVE, pp_at, 9, collective(8, Operation.NORM, Axis.PP)), (1, F, 0, 9)]

    found = opened(
        write(
            tmp_path,
            [rank([1, 4], 7, 0), rank([2, 3], 6, 0), rank([5, 6], 8, 1), rank([4, 7], 5, 1)],
            {"config": config(plan={"dp": 2, "pp": 2}, train={"batch": 8})},
        )
    )
    assert sorted(found.size.tolist()) == [2] * 6
    causes = {(int(c["rank"]), int(c["start"]) // MS): int(x) for c, x in zip(found.calls, found.cause, strict=True)}
    assert causes == {
        (0, 1): 1, (1, 2): 1, (0, 4): 0, (1, 3): 0, (2, 5): 2, (3, 4): 2, (2, 6): 3, (3, 7): 3,
        (0, 7): 2, (2, 8): 2, (1, 6): 1, (3, 5): 1,
    }  # fmt: skip


def test_a_collective_that_a_rank_lacks_is_not_known(tmp_path):
    ranks = [[(1, COLLECTIVE, 1, 2, collective(8, axis=Axis.WORLD)), (1, F, 0, 9)], [(1, F, 0, 9)]]
    assert opened(write(tmp_path, ranks)).instance.tolist() == [-1]


def test_a_collective_of_two_ranks_of_three_is_not_known(tmp_path):
    ranks = [[(1, COLLECTIVE, 1, 2, collective(8)), (1, F, 0, 9)]] * 2 + [[(1, F, 0, 9)]]
    found = opened(write(tmp_path, ranks, {"config": config(plan={"dp": 3}, train={"batch": 3})}))
    assert found.instance.tolist() == [-1, -1] and not len(found.size)


def test_sums_of_one_size_by_different_ranks_of_exchanges_meet(tmp_path):
    # bytes of an all-to-all are what each rank sends
    ranks = [[(1, COLLECTIVE, 1 + r, 4, collective(8 + r, Operation.DISPATCH, Axis.EP)), (1, F, 0, 9)] for r in range(2)]
    found = opened(write(tmp_path, ranks, {"config": {**config(plan={"dp": 2}, train={"batch": 2}), "plan": {"dp": 2, "ep": 2}}}))
    assert found.cause.tolist() == [1, 1]


def session(folder, rank, steps_, after, at_):
    described = {"config": config(plan={"pp": 2, "microbatches": 1})}
    with Writer(folder, rank, 2, described, after=after) as writer:
        for step in steps_:
            writer.step = step
            start = (at_ + 20 * step) * MS
            writer.record(F, start, start + 5 * MS)
            if rank == 0:
                writer.record(SEND, start + 5 * MS, start + 6 * MS, peer=1, bytes=8)
            elif step != 2:  # of step 2, which is run again, the receiver's file lost what followed
                writer.record(RECEIVE, start, start + 6 * MS, peer=0, bytes=8)
    write_index(folder, 2, described)


def test_each_session_counts_for_itself_and_warms_up(tmp_path):
    for rank in range(2):
        session(tmp_path, rank, (1, 2), None, 0)
    for rank in range(2):
        session(tmp_path, rank, (3, 4, 5), 2, 1000)
    trace = hpcpar.trace.open(tmp_path)
    found = steps(trace)
    assert found.numbers.tolist() == [1, 2, 3, 4, 5] and found.numbers[found.measured].tolist() == [2, 4, 5]
    assert summary(found)["warm_up"] == 1 and summary(found)["resumed"] == [3]
    met = partners(exchanges(trace, found))
    assert met == {**{(0, s): (1, s - 5) for s in (25, 1065, 1085, 1105)}, **{(1, s - 5): (0, s) for s in (25, 1065, 1085, 1105)}}


def test_sessions_count_from_the_last_one(tmp_path):
    # the file of rank 1 was lost before the resume, and began anew
    session(tmp_path, 0, (1, 2), None, 0)
    session(tmp_path, 0, (3, 4), 2, 1000)
    session(tmp_path, 1, (3, 4), None, 1000)
    assert partners(opened(tmp_path)) == {(0, 1065): (1, 1060), (1, 1060): (0, 1065), (0, 1085): (1, 1080), (1, 1080): (0, 1085)}


# communicators


def ask(ranks, rank, axis, stage=-1, operation=Operation.ALLREDUCE, model=None, **plan):
    described = {"config": {**config(), "model": {**config()["model"], **(model or {})}, "plan": plan}}
    return groups(described, ranks)(rank, axis, stage, operation)


def test_groups_along_each_axis():
    plan = {"pp": 2, "dp": 2, "cp": 2, "tp": 2}  # tp fastest, then cp, dp, pp
    assert ask(16, 5, Axis.TP, **plan) == (4, 5)
    assert ask(16, 5, Axis.CP, **plan) == (5, 7)
    assert ask(16, 5, Axis.DP, **plan) == ask(16, 5, Axis.DP, 0, **plan) == (1, 3, 5, 7)
    assert ask(16, 5, Axis.PP, **plan) == (4, 5, 12, 13)
    assert ask(16, 5, Axis.WORLD, **plan) == tuple(range(16))
    assert ask(16, 5, Axis.EP, ep=2, **plan) == (5, 7)
    assert ask(16, 5, Axis.NODE, **plan) is None


def test_a_stage_with_two_copies_is_summed_over_both():
    plan = {"pp": 4, "microbatches": 4, "schedule": "chimera"}
    copies = generate("chimera", stages=4, microbatches=4)
    for stage in range(4):
        assert ask(4, copies.holders(stage)[0], Axis.DP, stage, **plan) == tuple(sorted(copies.holders(stage)))


def test_replicas_of_a_stage():
    plan = {"pp": 2, "replicas": [3, 2], "schedule": "pipedream"}
    assert [ask(5, r, Axis.DP, s, **plan) for r, s in ((1, 0), (4, 1))] == [(0, 1, 2), (3, 4)]


def test_groups_that_the_description_does_not_tell():
    assert groups({}, 2)(0, Axis.DP, 0, 0) is None and groups({}, 2)(1, Axis.WORLD, -1, 0) == (0, 1)
    assert ask(3, 0, Axis.DP, dp=2) is None  # a plan for two ranks
    assert ask(4, 0, Axis.TP, operation=Operation.SHARED, model={"heads": 4, "kv_heads": 2}, tp=4) is None
    assert (
        ask(4, 0, Axis.TP, model={"heads": 4, "kv_heads": 2}, tp=4) == ask(4, 0, Axis.TP, operation=Operation.SHARED, tp=4) == (0, 1, 2, 3)
    )


def test_experts_meet_whom_the_run_lets_them_meet():
    for *sizes, ep, schedule in ((1, 4, 1, 1, 2, "1f1b"), (2, 2, 2, 2, 2, "1f1b"), (2, 3, 2, 1, 6, "1f1b"), (4, 4, 1, 1, 2, "chimera")):
        pp, dp, cp, tp = sizes
        plan = {"pp": pp, "dp": dp, "cp": cp, "tp": tp, "ep": ep, "microbatches": 4, "schedule": schedule}
        described = config(plan=plan, model={"layers": 4, "moe": {"experts": 8}}, train={"batch": 4 * dp})
        mesh = Mesh(("pp", "dp", "cp", "tp"), tuple(sizes))
        known = groups({"config": described}, mesh.ranks)
        lists = generate(schedule, stages=pp, microbatches=4)
        for rank in range(mesh.ranks):
            for axis, want in ((Axis.EP, expert.exchange_of(mesh, ep, rank)), (Axis.PP, expert.norm_of(mesh, ep, rank))):
                assert known(rank, axis, -1, Operation.COUNTS) == want
            for stage in lists.stages_of(mesh.coordinates(rank)["pp"]):
                want = expert.holders_of(mesh, lists, stage, ep, rank)
                assert known(rank, Axis.EXPERT_DP, stage, Operation.ALLREDUCE) == want


# what they are made of


def test_packed_keys_are_equal_where_all_columns_are():
    rng = np.random.default_rng(1)
    columns = [rng.integers(-(1 << 40), 1 << 40, 3).astype(np.int64)[rng.integers(0, 3, 200)] for _ in range(4)]  # 2^160 do not fit
    key = pack(columns)
    same = np.all([c[:, None] == c[None, :] for c in columns], axis=0)
    assert np.array_equal(key[:, None] == key[None, :], same)


def test_time_of_the_steps():
    time = StepTime(np.array([[10, 20], [50, 55]]))
    assert time.at(np.array([0, 10, 14, 20, 40, 50, 53, 99])).tolist() == [0, 0, 4, 10, 10, 10, 13, 15] and time.total == 15
    assert time.cut(np.array([[0, 12], [15, 52], [60, 70]])).tolist() == [[10, 12], [15, 20], [50, 52]]
    assert StepTime(np.empty((0, 2), np.int64)).at(np.array([3])).tolist() == [0]


@pytest.mark.parametrize("spans", [[], [[20, 50]]])
def test_nothing_lies_between_the_steps(spans):
    assert len(StepTime(np.array([[10, 20], [50, 55]])).cut(np.array(spans, np.int64).reshape(-1, 2))) == 0
