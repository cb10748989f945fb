"""Each rule of the diagnosis, on a trace where what it looks for costs a share that can be worked out on paper."""

import pytest
from hand_made import collective, config, message, pipe, write

import hpcpar.trace
from hpcpar.analyse.diagnosis import LEAST, RULES, diagnosis
from hpcpar.analyse.report import report
from hpcpar.nn.describe import step_flops
from hpcpar.trace.schema import Axis, Kind, Operation

F, B, WAIT = Kind.F, Kind.B, Kind.WAIT
REDUCE = collective(4000)
KEYS = {"operation": Operation.KEYS_VALUES, "axis": Axis.CP, "peer": 1, "bytes": 10}
TWO = {"dp": 2}


ROWS = {"operation": Operation.DISPATCH, "axis": Axis.EP, "bytes": 10}
EP = {"dp": 2, "ep": 2}


def routed(*tokens, steps=(1, 2)):
    """The metrics of a block 1 whose experts have so many tokens."""
    values = {"routed": sum(tokens), "dropped": 0, "unrouted": 0, "entropy": 1, "balance": 0, "z": 0, "causal": 1}
    values |= {f"tokens.{e}": n for e, n in enumerate(tokens)}
    return [("metric", step, f"moe.1.{name}", float(value)) for step in steps for name, value in values.items()]


def line(*parts, steps=(1, 2), length=100.0):
    """A rank whose every step of `length` ms is these (kind, ms, facts), one after the other; the kind None passes the time."""
    out = []
    for step in steps:
        at = step * 1000.0
        for kind, ms, *facts in parts:
            if kind is not None:
                out.append((step, kind, at, at + ms, *facts))
            at += ms
        assert at <= step * 1000 + length
        out.append((step, Kind.SEND, step * 1000.0, step * 1000.0, message(0, 0)))  # marks where the step begins and ends
        out.append((step, Kind.SEND, step * 1000 + length, step * 1000 + length, message(0, 0)))
    return out


def found(folder, *ranks, plan=None, train=None, **description):
    """{rule: finding} of a trace of these ranks."""
    described = {"config": config(plan=plan or {"dp": len(ranks)}, train={"batch": 4, **(train or {})}), **description}
    write(folder, ranks, described)
    rows = report(hpcpar.trace.open(folder))["diagnosis"]
    assert [row["share"] for row in rows] == sorted((row["share"] for row in rows), reverse=True)
    assert all(row["share"] >= LEAST and row["seconds"] == pytest.approx(row["share"] * 0.1) for row in rows)
    return {row["name"]: row for row in rows}


def found_any(folder, *ranks):
    """The names of the rules that say something of data-parallel ranks."""
    folder.mkdir()
    write(folder, list(ranks), {"config": config(plan=TWO, train={"batch": 4})})
    return {row["name"] for row in report(hpcpar.trace.open(folder))["diagnosis"]}


# rule: (its share, words of the sentence, words of the setting, the plan, the other rules that cost something, the ranks)
WHOLE = line((F, 40), (B, 60))
CASES = {
    "recompute": (0.2, "second time", 'plan.recompute = "none"', TWO, [], [line((F, 30), (Kind.RECOMPUTE, 20), (B, 50))] * 2),
    "update": (0.1, "update their weights", "plan.zero = 1", TWO, [], [line((F, 30), (B, 60), (Kind.UPDATE, 10))] * 2),
    "imbalance": (0.2, "rank 0 computes 100% of a step, the mean rank 80%", "host of rank 0", TWO, [], [
        WHOLE, line((F, 20), (B, 40), (WAIT, 40, REDUCE)),
    ]),
    "messages": (0.2, "rank 0 waits for them beyond the bubble, mostly keys_values along cp", "context ranks on one node", {"cp": 2}, [], [
        line((F, 30), (WAIT, 20, KEYS), (Kind.SEND, 0, KEYS), (B, 50)), line((F, 80), (WAIT, 20, KEYS)),
    ]),
    "collectives": (0.3, "mostly allreduce along dp", "plan.accumulate", TWO, [], [
        line((F, 30), (B, 40), (Kind.COLLECTIVE, 30, REDUCE)),
    ] * 2),
    "copies": (0.25, "copies between host and device", "device_mb", TWO, [], [
        line((F, 30), (B, 45), (WAIT, 25, {"operation": Operation.TO_HOST})),
    ] * 2),
    "files": (0.15, "read or write files", "run.checkpoint_every", TWO, [], [line((F, 30), (B, 55), (Kind.IO, 15))] * 2),
    "rest": (0.4, "no event covers", "larger microbatches", TWO, [], [line((F, 30), (None, 40), (B, 30))] * 2),
    "experts": (0.15, "in block 1 the busiest expert has 1.50 x the mean tokens", "model.moe.balance", EP, ["collectives", "imbalance"], [
        [*line((F, 60), (Kind.COLLECTIVE, 10, ROWS), (B, 30)), *routed(3, 1)],
        [*line((F, 30), (Kind.COLLECTIVE, 40, ROWS), (B, 30)), *routed(3, 1)],
    ]),
    "clocks": (0.35, "clocks of slower ones", "plan.sync.staleness", TWO, [], [
        line((F, 30), (B, 35), (WAIT, 35, {"operation": Operation.CLOCK})),
    ] * 2),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_names_its_cost_and_its_setting(tmp_path, rule):
    share, sentence, setting, plan, others, ranks = CASES[rule]
    rows = found(tmp_path, *ranks, plan=plan)
    assert sorted(rows) == sorted([rule, *others])
    assert rows[rule]["share"] == pytest.approx(share)
    assert sentence in rows[rule]["sentence"] and setting in rows[rule]["setting"]


def test_late_ranks_at_even_experts_are_not_the_experts_fault(tmp_path):
    ranks = [[*rank[: -len(routed(3, 1))], *routed(2, 2)] for rank in CASES["experts"][-1]]
    assert sorted(found(tmp_path, *ranks, plan=EP)) == ["collectives", "imbalance"]


def test_every_rule_has_a_trace_of_its_own():
    assert set(RULES) == set(CASES) | {"arithmetic", "bubble", "unsteady"}


def test_arithmetic_is_what_the_machine_would_take_less_for(tmp_path):
    """0.9 of a step is compute; the machine would need 0.25 of it for the same arithmetic."""
    from hpcpar.config import build

    plan, train = {"dp": 2}, {"batch": 4}
    flops = step_flops(build({"plan": plan, "train": train}).model, 4)
    rank = line((F, 30), (B, 60), (WAIT, 10, REDUCE))
    rows = found(tmp_path / "a", rank, rank, machine={"matrix_flops_per_s": flops / 0.025})
    assert rows["arithmetic"]["share"] == pytest.approx(0.65) and "28% of the machine's matrix rate" in rows["arithmetic"]["sentence"]
    assert "arithmetic" not in found(tmp_path / "b", rank, rank)  # not known is not zero


def test_the_bubble_is_the_schedule_s_own_and_its_waits_count_once(tmp_path):
    """Rank 1 computes longest, 7 of 10 ms; it waits 1 ms for a message and is idle for 1, both the schedule's doing."""
    rows = {row["name"]: row for row in report(hpcpar.trace.open(pipe(tmp_path)))["diagnosis"]}
    assert rows["bubble"]["share"] == pytest.approx(0.2) and "1f1b with 2 microbatches on 2 stages" in rows["bubble"]["sentence"]
    setting = rows["bubble"]["setting"]
    assert "plan.microbatches = 4 (by the closed form 20% of the pipeline's time, not 33%)" in setting and '"zb-h1"' in setting
    assert "messages" not in rows and "rest" not in rows
    assert rows["collectives"]["share"] == pytest.approx(0.1) and rows["update"]["share"] == pytest.approx(0.1)


def test_messages_and_rest_are_what_the_bubble_does_not_explain(tmp_path):
    """Two stages, one microbatch of F 10 and B 10 ms: the clock lets each rank stand still for 20 ms of a step of 100."""
    here, there = message(1, 10), message(0, 10)
    s0, s1 = {"stage": 0}, {"stage": 1}
    first = line((F, 10, s0), (Kind.SEND, 0, here), (WAIT, 30, here), (None, 50), (B, 10, s0))
    second = line((WAIT, 30, there), (None, 40), (F, 10, s1), (B, 10, s1))
    rows = found(tmp_path, first, second, plan={"pp": 2, "microbatches": 1})
    assert {name: round(row["share"], 6) for name, row in rows.items()} == {"rest": 0.5, "bubble": 0.2, "messages": 0.1}
    assert "plan.order" in rows["messages"]["setting"]


def test_uneven_stages_ask_for_another_cut(tmp_path):
    rows = found(tmp_path, WHOLE, line((F, 20), (B, 40), (WAIT, 40, message(0, 1))), plan={"pp": 2, "microbatches": 2})
    assert rows["imbalance"]["share"] == pytest.approx(0.2) and "hpcpar partition" in rows["imbalance"]["setting"]


def test_uneven_replicas_of_even_stages_ask_for_a_look_at_the_host(tmp_path):
    slow, fast = line((F, 40), (B, 60)), line((F, 30), (B, 40), (WAIT, 30, REDUCE))
    rows = found(tmp_path, slow, fast, slow, fast, plan={"pp": 2, "dp": 2, "microbatches": 2})
    assert "host of rank 0" in rows["imbalance"]["setting"]


def test_steps_that_differ_are_unsteady(tmp_path):
    """Steps 2 to 4 take 100, 100 and 160 ms: 120 in the mean, 20 more than the fastest."""
    rank = [(s, F, 1000 * s, 1000 * s + ms) for s, ms in ((1, 500), (2, 100), (3, 100), (4, 160))]
    write(tmp_path, [rank, rank])
    rows = {row["name"]: row for row in report(hpcpar.trace.open(tmp_path))["diagnosis"]}
    assert rows["unsteady"]["share"] == pytest.approx(20 / 120) and "100 to 160 ms" in rows["unsteady"]["sentence"]


def test_what_is_waited_for_longest_is_named_whatever_its_bytes(tmp_path):
    few = {**ROWS, "bytes": 1}
    ranks = [line((F, 30), (B, 30), (Kind.COLLECTIVE, 30, few), (Kind.COLLECTIVE, 10, REDUCE))] * 2
    assert "mostly dispatch along ep" in found(tmp_path, *ranks, plan=EP)["collectives"]["sentence"]


def test_settings_of_replicas_that_step_on_their_own(tmp_path):
    average = {**REDUCE, "operation": Operation.AVERAGE}
    ranks = [line((F, 30), (B, 30), (Kind.UPDATE, 20), (Kind.COLLECTIVE, 20, average))] * 2
    rows = found(tmp_path, *ranks, plan={"dp": 2, "sync": {"mode": "local"}})
    assert rows["collectives"]["setting"].startswith("plan.sync.every") and "zero" not in rows["update"]["setting"]


def test_steps_of_workers_with_their_own_clocks_are_not_unsteady(tmp_path):
    ranks = [[*line(*[(F, 60), (B, 40)], steps=(1, 2, 3)), (3, F, 3100, 3200)] for _ in range(2)]
    assert "unsteady" in found_any(tmp_path / "a", *ranks)
    stale = [("metric", n, "staleness", 1.0) for n in (1, 2, 3)]
    assert "unsteady" not in found_any(tmp_path / "b", *([*rank, *stale] for rank in ranks))


def test_a_collective_s_setting_goes_with_its_axis(tmp_path):
    settings = {Axis.TP: "less plan.tp", Axis.EP: "plan.experts.overlap", Axis.WORLD: "fewer of them", Axis.DP: "plan.sync.bucket_mb"}
    for axis, setting in settings.items():
        rank = line((F, 30), (B, 40), (Kind.COLLECTIVE, 30, collective(4000, axis=axis)))
        assert setting in found(tmp_path / axis.name, rank, rank)["collectives"]["setting"]


def test_nothing_is_said_of_a_run_without_steps(tmp_path):
    assert report(hpcpar.trace.open(pipe(tmp_path, steps=0)))["diagnosis"] == []
    assert diagnosis({"steps": {"count": 0}, "shares": []}) == []
