"""Runs against a baseline, utilisation, and memory over time, by hand."""

import argparse
import json

import pytest
from hand_made import MS, PIPE, config, pipe, write

import hpcpar.trace
from hpcpar.analyse.memory import over_time
from hpcpar.analyse.report import report
from hpcpar.analyse.scaling import scaling
from hpcpar.analyse.steps import steps
from hpcpar.analyse.table import compared, tables
from hpcpar.analyse.throughput import throughput
from hpcpar.cli import analyse
from hpcpar.errors import PlanError
from hpcpar.nn.describe import step_flops
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Kind
from hpcpar.trace.writer import Writer

MODEL = {"layers": 2, "width": 8, "heads": 2, "vocabulary": 16, "context": 5}


def busy(folder, ranks, batch, compute, step, model=None):
    """Steps of `step` ms, in which each rank computes for `compute` ms and waits for the rest, for nobody knows whom."""
    described = {"config": config(model={**MODEL, **(model or {})}, plan={"dp": ranks}, train={"batch": batch})}
    one = [(s, k, 100 * s + a, 100 * s + b) for s in (1, 2) for k, a, b in ((Kind.F, 0, compute), (Kind.WAIT, compute, step))]
    write(folder, [one] * ranks, described)
    return report(hpcpar.trace.open(folder))


def close(row, **expected):
    assert {k: row[k] for k in expected} == pytest.approx(expected, rel=1e-12)


def test_strong_scaling(tmp_path):
    # 1 rank: 40 of 40 ms. 4 ranks: 11 of 16 ms each, 44 in all: speed-up 2.5, efficiency 0.625 = (40 / 44) x (11 / 16) / 1
    runs = [busy(tmp_path / "a", 4, 8, 11, 16), busy(tmp_path / "b", 1, 8, 40, 40)]
    four, one = scaling(runs)
    assert (one["kind"], four["kind"]) == ("baseline", "strong")
    close(four, speedup=2.5, efficiency=0.625, computation=40 / 44, parallel=11 / 16, tokens_per_s=40 / 0.016)
    close(one, speedup=1.0, efficiency=1.0, computation=1.0, parallel=1.0)


def test_weak_scaling(tmp_path):
    # 40 ms for 8 samples on one rank, 50 ms for 24 on three, of which 45 computed
    _, three = scaling([busy(tmp_path / "a", 1, 8, 40, 40), busy(tmp_path / "b", 3, 24, 45, 50)])
    assert three["kind"] == "weak"
    close(three, speedup=2.4, efficiency=0.8, computation=40 / 45, parallel=0.9)


def test_efficiency_is_what_its_factors_give(tmp_path):
    runs = [busy(tmp_path / "a", 2, 8, 20, 25), busy(tmp_path / "b", 3, 12, 45, 50), busy(tmp_path / "c", 4, 24, 30, 50)]
    base, *others = scaling(runs)
    for row in others:
        assert row["efficiency"] == pytest.approx(row["computation"] * row["parallel"] / base["parallel"], rel=1e-12)
    assert [row["kind"] for row in others] == ["weak", "other"]


def test_the_baseline_is_chosen(tmp_path):
    runs = [busy(tmp_path / "a", 1, 8, 40, 40), busy(tmp_path / "b", 2, 8, 20, 20), busy(tmp_path / "c", 2, 8, 10, 10)]
    assert [row["kind"] for row in scaling(runs, 1)] == ["strong", "baseline", "same"]
    close(scaling(runs, 1)[2], speedup=2.0, efficiency=2.0)


def test_another_model_has_no_efficiency(tmp_path):
    other, _ = scaling([busy(tmp_path / "a", 2, 8, 40, 40, {"layers": 3}), busy(tmp_path / "b", 1, 8, 40, 40)])
    assert other["ranks"] == 2 and other["tokens_per_s"] == pytest.approx(1000)
    assert all(other[k] is None for k in ("kind", "speedup", "efficiency", "computation", "parallel"))


def test_a_run_without_steps_has_no_efficiency(tmp_path):
    none = report(hpcpar.trace.open(pipe(tmp_path / "a", steps=0)))
    _, row = scaling([none, none])
    assert all(row[k] is None for k in ("tokens_per_s", "speedup", "efficiency", "computation", "parallel"))


def call(*words):
    parser = argparse.ArgumentParser()
    analyse.add(parser.add_subparsers())
    args = parser.parse_args(["analyse", *map(str, words)])
    return args.func(args)


def test_the_command_compares_with_the_baseline(tmp_path, capsys):
    for name, ranks in (("a", 1), ("b", 2), ("c", 4)):
        busy(tmp_path / name, ranks, 8, 40 / ranks, 40 / ranks)
    assert call(tmp_path / "c", tmp_path / "a", "--json") == 0
    assert [r["scaling"]["kind"] for r in json.loads(capsys.readouterr().out)] == ["strong", "baseline"]
    assert call(tmp_path / "c", tmp_path / "a", "--baseline", tmp_path / "c", "--json") == 0
    assert [r["scaling"]["speedup"] for r in json.loads(capsys.readouterr().out)] == pytest.approx([1, 0.25])
    assert call(tmp_path / "c", "--baseline", tmp_path / "b", "--json") == 0  # one that is not among the runs comes first
    assert [r["scaling"]["kind"] for r in json.loads(capsys.readouterr().out)] == ["baseline", "strong"]
    assert call(tmp_path / "a", tmp_path / "b", tmp_path / "c") == 0
    assert "speed-up" in (out := capsys.readouterr().out) and "4.000" in out and "strong" in out
    with pytest.raises(PlanError, match="holds no trace"):
        call(tmp_path / "a", "--baseline", tmp_path / "none")


# utilisation


def test_utilisation_is_against_the_given_peak_or_the_measured_rate(tmp_path):
    found = [busy(tmp_path / "a", 2, 8, 10, 20)]
    trace = hpcpar.trace.open(tmp_path / "a")
    rate = step_flops(config_model(trace), 8) / 0.02
    close(throughput(trace, steps(trace), 1e6), mfu=rate / 2e6, peak_flops_per_s=2e6)
    assert throughput(trace, steps(trace), 1e6)["peak_from"] == "given"
    unknown = found[0]["throughput"]
    assert unknown["flops_per_s"] == pytest.approx(rate) and unknown["mfu"] is unknown["peak_flops_per_s"] is unknown["peak_from"] is None
    trace.description["machine"] = {"matrix_flops_per_s": 4e6}
    close(throughput(trace, steps(trace)), mfu=rate / 4e6, fraction=rate / 4e6)
    close(throughput(trace, steps(trace), 1e6), mfu=rate / 2e6, fraction=rate / 4e6)


def config_model(trace):
    from hpcpar.analyse.throughput import config as stored

    return stored(trace).model


@pytest.mark.parametrize("peak", ["0", "-3", "inf", "nan"])
def test_a_peak_that_is_none_is_refused(tmp_path, peak):
    pipe(tmp_path)
    with pytest.raises(PlanError, match="does more than 0 GFLOP/s"):
        call(tmp_path, "--peak", peak)


def test_the_peak_is_of_one_rank_in_gflop_per_s(tmp_path, capsys):
    pipe(tmp_path)
    assert call(tmp_path, "--json", "--peak", "0.5") == 0
    assert json.loads(capsys.readouterr().out)["throughput"]["peak_flops_per_s"] == 1e9
    assert call(tmp_path, "--peak", "0.5") == 0
    assert "% of the given peak" in capsys.readouterr().out
    assert call(tmp_path) == 0
    assert "not known, give --peak" in capsys.readouterr().out


# memory over time


def test_memory_over_the_measured_steps(tmp_path):
    described = {"config": config(plan={"dp": 2}, train={"batch": 2})}
    for rank in range(2):
        with Writer(tmp_path, rank, 2, described) as w:
            w.memory("parameters", 100 + rank, -5 * MS)
            for step, start in ((1, 0), (2, 100), (3, 200)):  # the warm-up, two measured steps of 40 ms: four bins of 20 ms
                w.step = step
                w.record(Kind.F, start * MS, (start + 40) * MS)
            if rank == 0:
                for at, size in ((10, 999), (105, 30), (112, 50), (118, 20), (130, 5), (145, 5000), (150, 777), (225, 8)):
                    w.memory("stash", size, at * MS)
            else:
                w.memory("stash", 40, 150 * MS)
    write_index(tmp_path, 2, described)
    trace = hpcpar.trace.open(tmp_path)
    got = over_time(trace, steps(trace), bins=4)
    assert got["times_s"] == pytest.approx([0.01, 0.03, 0.05, 0.07])
    assert got["kinds"]["parameters"] == {"most": [101] * 4, "mean": [100.5] * 4, "rank": 1}
    # rank 0: 999 when the steps begin, 30, 50, 20 | 20, 5 | what the break left, 777, not what it held | 777, 8
    # rank 1: not known | not known | 40 | 40
    assert got["kinds"]["stash"] == {"most": [999, 20, 777, 777], "mean": [999, 20, 408.5, 408.5], "rank": 0}


def test_memory_that_is_not_known_is_none(tmp_path):
    with Writer(tmp_path, 0, 1, {}) as w:
        w.step = 1
        w.record(Kind.F, 0, 40 * MS)
        w.memory("stash", 7, 25 * MS)
    write_index(tmp_path, 1, {})
    trace = hpcpar.trace.open(tmp_path)
    assert over_time(trace, steps(trace), bins=4)["kinds"]["stash"]["most"] == [None, None, 7, 7]


# as text


def test_80_columns_hold_the_details_and_many_runs(tmp_path):
    from rich.console import Console

    one = report(hpcpar.trace.open(pipe(tmp_path, description=PIPE)), 1e9)
    pairs = [{"rank": 511, "waits_for": 510, "kind": "late_receiver", "waits": 123456, "late_s": 12.3456, "transfer_s": 0.0012345}] * 60
    last = [{"rank": 511, "collectives": 1234567, "last": 123456, "share": 0.1, "caused_s": 1.23456, "ahead_s": 0.0123456}] * 60
    one["waiting"] |= {"pairs": pairs, "stragglers": last, "transfer_s": 1.0}
    rate = {"calls": 1234567, "bytes": 10**12, "bytes_per_s": 1e11, "waited_calls": 1234567, "waited_bytes_per_s": 1e11}
    one["bandwidth"] = {
        "operations": [{"kind": "collective", "operation": "keys_values_gradient", "axis": "world", **rate}],
        "pairs": [{"source": 511, "destination": 510, **rate}] * 60,
    }
    one["critical_path"]["ranks"] = [{"rank": r, "share": 1 / 64} for r in range(64)]
    console = Console(width=80, record=True, file=open("/dev/null", "w"), markup=False)  # noqa: SIM115
    for part in [*tables(one), *tables(one, detail=True), *compared([one] * 9)]:
        console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert "24 of 60" in text and "3 of 60" in text and "and 58 more" in text and "serialisation and transfer are not known" in text
    for word in ("efficiency", "computation", "speed-up", "waits for", "stash" if one["memory_over_time"]["kinds"] else "efficiency"):
        assert word in text, word
