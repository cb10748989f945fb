"""Every measure against what a sheet of paper gives for the same trace."""

import math

import pytest
from hand_made import PIPE, collective, config, message, pipe, write

import hpcpar.trace
from hpcpar.analyse.bubble import bubble
from hpcpar.analyse.memory import peaks
from hpcpar.analyse.overlap import overlap
from hpcpar.analyse.report import report
from hpcpar.analyse.shares import NAMES, shares
from hpcpar.analyse.steps import steps
from hpcpar.analyse.throughput import throughput
from hpcpar.analyse.volumes import volumes
from hpcpar.nn.describe import step_flops
from hpcpar.trace.schema import Kind, Operation


def opened(folder):
    trace = hpcpar.trace.open(folder)
    return trace, steps(trace)


def close(row, **expected):
    assert {k: row[k] for k in expected} == pytest.approx(expected, abs=1e-12)


# shares


def test_shares_of_the_hand_made_pipeline(tmp_path):
    first, second = shares(*opened(pipe(tmp_path)))
    # rank 0, of 10 ms: F 2, B 4, update 0.5 (0.5 of it waited), waits 2 + 1 for messages and 0.5 for the collective
    close(first, F=0.2, B=0.4, update=0.05, compute=0.65, wait_messages=0.3, wait_collectives=0.05, wait=0.35)
    close(first, send_receive=0, collective=0, idle=0, io=0, copy=0)
    # rank 1: the collective is blocking: it lies in no compute and no wait; 8 to 9 nothing happens
    close(second, F=0.2, B=0.4, update=0.1, compute=0.7, wait=0.1, collective=0.1, idle=0.1, send_receive=0)


def test_shares_sum_to_one(tmp_path):
    for row in shares(*opened(pipe(tmp_path))):
        assert sum(row[name] for name in NAMES) == pytest.approx(1, abs=1e-12)


def test_a_nonblocking_call_is_in_no_share(tmp_path):
    # a receive posted during F that ends in a gap: the gap is idle, not receiving
    ranks = [[(1, Kind.F, 0, 4), (1, Kind.RECEIVE, 3, 6, message(0, 8)), (1, Kind.F, 8, 10)]]
    (row,) = shares(*opened(write(tmp_path, ranks)))
    close(row, F=0.6, send_receive=0.0, idle=0.4)


def test_a_blocking_call_is_the_rank_s_own_time(tmp_path):
    ranks = [[(1, Kind.F, 0, 4), (1, Kind.SEND, 4, 6, message(0, 8)), (1, Kind.COLLECTIVE, 7, 8, collective(8)), (1, Kind.F, 8, 10)]]
    (row,) = shares(*opened(write(tmp_path, ranks)))
    close(row, F=0.6, send_receive=0.2, collective=0.1, idle=0.1)


def test_an_inner_event_takes_its_time_from_the_outer_one(tmp_path):
    ranks = [
        [
            (1, Kind.RECOMPUTE, 1, 4),
            (1, Kind.WAIT, 2, 3, collective(8)),
            (1, Kind.B, 0, 8),
            (1, Kind.COPY, 7, 9),
            (1, Kind.IO, 8.5, 10),
        ]
    ]
    (row,) = shares(*opened(write(tmp_path, ranks)))
    close(row, wait_collectives=0.1, recompute=0.2, B=0.5, copy=0.1, io=0.1, compute=0.7, idle=0)


# overlap


def test_overlap_is_the_share_under_compute(tmp_path):
    first, second = overlap(*opened(pipe(tmp_path)))
    # rank 0's all-reduce lasts 1.5 ms, 1 of it in B; the 0.5 in the update is waited for
    close(first, collective_s=0.0015, collective_hidden=2 / 3)
    # its messages: sends 1 to 1.5 and 2 to 2.25, receive 1 to 4: together 3 ms, 1 of them in F
    close(first, send_receive_s=0.003, send_receive_hidden=1 / 3)
    close(second, collective_s=0.001, collective_hidden=0)
    assert second["send_receive_hidden"] is None
    assert first["copy_s"] == 0 and first["copy_hidden"] is None


# bubble


def test_the_bubble_of_the_hand_made_pipeline_is_the_closed_form(tmp_path):
    found = bubble(*opened(pipe(tmp_path)))
    assert found["cost_s"] == pytest.approx(0.009) and found["work_s"] == pytest.approx(0.006)
    assert found["bubble_total"] == pytest.approx(1 / 3) and found["bubble_ideal"] == pytest.approx(1 / 2)  # (p-1)/(m+p-1), (p-1)/m
    for other in ("clock", "closed_form"):
        assert found[other]["bubble_total"] == pytest.approx(1 / 3), other
        assert found[other]["bubble_ideal"] == pytest.approx(1 / 2), other


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_closed_form_is_that_of_the_clock_for_equal_times(tmp_path, name, accumulate):
    m = 4 if name == "interleaved" else 6
    plan = {"pp": 2, "microbatches": m, "accumulate": accumulate, "schedule": name, "chunks": 2 if name == "interleaved" else 1}
    described = {"config": config(model={"layers": 4}, plan=plan, train={"batch": m * accumulate})}
    stages = 2 * plan["chunks"]
    ranks = [[(1, kind, 0, 1, {"stage": s}) for s in range(r, stages, 2) for kind in (Kind.F, Kind.I, Kind.W)] for r in range(2)]
    found = bubble(*opened(write(tmp_path, ranks, described)))
    for part in ("bubble_total", "bubble_ideal"):
        assert found["closed_form"][part] == pytest.approx(found["clock"][part]) and found["clock"][part] > 0


def test_a_closed_form_is_not_given_outside_its_domain(tmp_path):
    described = {
        "config": config(model={"layers": 4}, plan={"pp": 2, "microbatches": 3, "schedule": "interleaved", "chunks": 2}, train={"batch": 3})
    }
    found = bubble(*opened(write(tmp_path, [[(1, Kind.F, 0, 1, {"stage": 0})]] * 2, described)))
    assert found["closed_form"] is None


def test_the_clock_takes_the_measured_times_of_each_stage(tmp_path):
    # p = 2, m = 1: stage 0 F 1, B 2, stage 1 F 3, B 5: cost 1 + 3 + 5 + 2 on rank 0, work 8 on rank 1
    ranks = [
        [(s, Kind.F, 20 * s, 20 * s + 1, {"stage": 0}) for s in (1, 2)]
        + [(s, Kind.B, 20 * s + 10, 20 * s + 12, {"stage": 0}) for s in (1, 2)],
        [(s, Kind.F, 20 * s + 1, 20 * s + 4, {"stage": 1}) for s in (1, 2)]
        + [(s, Kind.B, 20 * s + 4, 20 * s + 9, {"stage": 1}) for s in (1, 2)],
    ]
    described = {"config": config(model={"layers": 2}, plan={"pp": 2, "microbatches": 1}, train={"batch": 1})}
    found = bubble(*opened(write(tmp_path, ranks, described)))
    assert found["clock"]["cost_s"] == pytest.approx(0.011) and found["clock"]["work_s"] == pytest.approx(0.008)
    assert found["cost_s"] == pytest.approx(0.012)  # a millisecond was lost on the way back


def test_recompute_inside_a_backward_is_counted_once(tmp_path):
    ranks = [[(1, Kind.F, 0, 2, {"stage": 0}), (1, Kind.RECOMPUTE, 4, 6, {"stage": 0}), (1, Kind.B, 4, 10, {"stage": 0})]]
    found = bubble(*opened(write(tmp_path, ranks)))
    assert found["work_s"] == pytest.approx(0.008) and found["cost_s"] == pytest.approx(0.010)


def test_split_backwards_are_timed_by_the_clock(tmp_path):
    ranks = [[(1, kind, t, t + 1, {"stage": 0, "microbatch": 0}) for t, kind in enumerate((Kind.F, Kind.I, Kind.W))]]
    found = bubble(*opened(write(tmp_path, ranks, {"config": config()})))
    assert found["clock"]["work_s"] == pytest.approx(0.003) and found["bubble_total"] == pytest.approx(0)


def test_an_asynchronous_run_has_one_span(tmp_path):
    ranks = [[(s, Kind.F, 10 * s, 10 * s + 4, {"stage": 0}) for s in range(1, 5)]]
    described = {"config": config(plan={"schedule": "pipedream"})}
    found = bubble(*opened(write(tmp_path, ranks, described)))
    assert found["cost_s"] == pytest.approx(0.024) and found["work_s"] == pytest.approx(0.012)
    assert found["clock"] is None and found["closed_form"] is None


def test_without_a_description_there_is_only_what_was_measured(tmp_path):
    trace, found = opened(pipe(tmp_path, description={}))
    assert bubble(trace, found)["bubble_total"] == pytest.approx(1 / 3) and bubble(trace, found)["clock"] is None
    assert throughput(trace, found) is None


# volumes, memory, throughput


def test_volumes_are_counted_by_operation_axis_and_pair(tmp_path):
    found = volumes(*opened(pipe(tmp_path)))
    rows = {(r["kind"], r["operation"], r["axis"]): (r["calls"], r["bytes"], r["bytes_per_step"]) for r in found["operations"]}
    assert rows == {
        ("send", "activation", "pp"): (6, 600, 200),
        ("send", "gradient", "pp"): (6, 600, 200),
        ("receive", "gradient", "pp"): (3, 300, 100),
        ("collective", "allreduce", "dp"): (6, 36000, 12000),
    }
    assert found["pairs"] == [
        {"source": 0, "destination": 1, "calls": 6, "bytes": 600},
        {"source": 1, "destination": 0, "calls": 6, "bytes": 600},
    ]


def test_a_ring_is_as_large_as_the_group_that_the_description_says(tmp_path):
    """An all-reduce sends 2 (N - 1) / N of its array; N is dp, times the copies of a stage, or the replicas of that stage."""
    one = [(1, Kind.COLLECTIVE, 0, 1, {**collective(600), "stage": 0}), (1, Kind.COLLECTIVE, 1, 2, collective(8, Operation.LOSS))]
    two = {"dp": 2, "pp": 2, "microbatches": 2}
    for plan, ranks, n in (({"dp": 2}, 2, 2), ({"dp": 3, "pp": 2}, 6, 3), ({**two, "schedule": "chimera"}, 4, 4), ({"dp": 3}, 2, 0)):
        rows = volumes(*opened(write(tmp_path / str(ranks + n), [one] * ranks, {"config": config(plan=plan)})))["operations"]
        sent = 1200 * (n - 1) / n if n else None  # the last plan is not that of so many ranks
        assert [(r["operation"], r["ring_bytes_per_step"]) for r in rows] == [("allreduce", sent), ("loss", None)]


def test_bytes_beyond_32_bits_and_operations_of_a_later_version(tmp_path):
    ranks = [[(1, Kind.SEND, 0, 1, message(0, 2**40)), (1, Kind.SEND, 1, 2, {**message(0, 2**40), "operation": 99})]]
    found = volumes(*opened(write(tmp_path, ranks)))
    assert [(r["operation"], r["bytes"]) for r in found["operations"]] == [("activation", 2**40), ("99", 2**40)]
    assert found["pairs"][0]["bytes"] == 2**41


def test_peaks_by_rank_and_kind(tmp_path):
    ranks = [
        [("memory", "stash", 5), ("memory", "stash", 9), ("memory", "stash", 7), ("memory", "device", 0)],
        [("memory", "stash", 1)],
        [],
    ]
    assert peaks(opened(write(tmp_path, ranks))[0]) == [{"rank": 0, "stash": 9, "device": 0}, {"rank": 1, "stash": 1}, {"rank": 2}]


@pytest.mark.parametrize(
    ("machine", "rate"), [({"matrix_flops_per_s": 1e9}, 1e9), ({"matrix_flops_per_s_rank": 1e9}, 2e9), ({}, None), (None, None)]
)
def test_throughput_is_that_of_the_described_batch(tmp_path, machine, rate):
    found = throughput(*opened(pipe(tmp_path, description={**PIPE, "machine": machine})))
    from hpcpar.config import build

    flops = step_flops(build(PIPE["config"]).model, 6)
    assert found["tokens_per_step"] == 30 and found["tokens_per_s"] == pytest.approx(3000)
    assert found["step_flops"] == flops and found["flops_per_s"] == pytest.approx(flops / 0.01)
    assert found["fraction"] == (pytest.approx(flops / 0.01 / rate) if rate else None)


def test_emulated_stages_do_no_arithmetic(tmp_path):
    described = {"config": {**PIPE["config"], "train": {**PIPE["config"]["train"], "emulate": {"F": 0.001}}}}
    found = throughput(*opened(pipe(tmp_path, description=described)))
    assert found["tokens_per_s"] == pytest.approx(3000) and found["flops_per_s"] is None and found["fraction"] is None


# whole reports of broken runs


def test_a_missing_rank_is_named_and_the_others_analysed(tmp_path):
    pipe(tmp_path)
    (tmp_path / "trace.00001.h5").unlink()
    found = report(hpcpar.trace.open(tmp_path))
    assert found["run"]["missing"] == {"1": "trace.00001.h5 is missing"}
    assert [row["rank"] for row in found["shares"]] == [0]
    assert found["bubble"]["clock"] is None  # its times are not known for every stage


def test_an_empty_run_has_no_numbers(tmp_path):
    found = report(hpcpar.trace.open(write(tmp_path, [[], []], PIPE)))
    assert found["steps"] == {"count": 0}
    assert found["shares"] == [] and found["overlap"] == [] and found["bubble"] is None and found["throughput"] is None
    assert found["volumes"] == {"operations": [], "pairs": []}


def test_an_event_that_ends_before_it_starts_counts_nothing(tmp_path):
    ranks = [[(1, Kind.F, 0, 4), (1, Kind.F, 8, 6), (1, Kind.F, 6, 10)]]
    (row,) = shares(*opened(write(tmp_path, ranks)))
    close(row, F=0.8, idle=0.2)


def test_a_norm_is_a_collective_and_no_message(tmp_path):
    ranks = [[(1, Kind.F, 0, 5), (1, Kind.WAIT, 5, 10, collective(8, Operation.NORM))]]
    (row,) = shares(*opened(write(tmp_path, ranks)))
    close(row, wait_collectives=0.5, wait_messages=0)
    assert not math.isnan(row["wait"])
