"""`hpcpar analyse` and `hpcpar compare` as they are called: what goes to stdout, and what is refused."""

import argparse
import json
import math
import shutil

import numpy as np
import pytest
from hand_made import MS, config, pipe

from hpcpar import checkpoint
from hpcpar.analyse.table import compared, tables
from hpcpar.cli import analyse, compare
from hpcpar.errors import PlanError
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Kind
from hpcpar.trace.writer import Writer


def call(module, *words):
    parser = argparse.ArgumentParser()
    module.add(parser.add_subparsers())
    args = parser.parse_args([module.__name__.rpartition(".")[2], *map(str, words)])
    return args.func(args)


# analyse


def test_json_is_all_that_stdout_holds(tmp_path, capsys):
    pipe(tmp_path / "run")
    assert call(analyse, tmp_path / "run", "--json", "--png", tmp_path / "t.png") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["run"]["ranks"] == 2 and found["steps"]["count"] == 3 and found["shares"][0]["F"] == pytest.approx(0.2)
    assert "step 2 is drawn" in err


def test_several_runs_are_a_list_and_a_column_each(tmp_path, capsys):
    for name in "ab":
        pipe(tmp_path / name)
    assert call(analyse, tmp_path / "a", tmp_path / "b", "--json") == 0
    assert [r["run"]["folder"] for r in json.loads(capsys.readouterr().out)] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert call(analyse, tmp_path / "a", tmp_path / "b") == 0
    out = capsys.readouterr().out
    assert out.count("0.3333  0.5000") >= 2 and "tokens/s" in out


def test_the_table_says_what_the_report_holds(tmp_path, capsys):
    pipe(tmp_path / "run")
    (tmp_path / "run" / "trace.00001.h5").unlink()
    assert call(analyse, tmp_path / "run") == 0
    out = capsys.readouterr().out
    for text in (
        "rank 1: left out, its file is missing",
        "3,000",
        "10 ms, without step 1",
        "allreduce",
        "65.0",
        "%  the pipeline fills and drains",
    ):
        assert text in out, text


def test_an_empty_run_is_shown(tmp_path, capsys):
    pipe(tmp_path / "run", steps=0)
    assert call(analyse, tmp_path / "run") == 0
    assert "none that all ranks have" in capsys.readouterr().out


@pytest.mark.parametrize("ranks", [3, 64])
def test_80_columns_are_enough(tmp_path, ranks):
    from rich.console import Console

    every = [k for k in Kind if k not in (Kind.EVALUATE, Kind.CHECKPOINT)]
    described = {"config": config(plan={"dp": ranks}, train={"batch": ranks})}
    for rank in range(ranks):
        with Writer(tmp_path, rank, ranks, described) as writer:
            for writer.step in (1, 2):
                for i, kind in enumerate(every):
                    writer.record(kind, (50 * writer.step + i) * MS, (50 * writer.step + i + 1) * MS + rank, bytes=10**9, peer=0)
            for kind in ("stash", "parameters", "gradients", "optimizer", "device"):
                writer.memory(kind, 10**9 + rank)
    write_index(tmp_path, ranks, described)
    import hpcpar.trace
    from hpcpar.analyse.report import report

    found = report(hpcpar.trace.open(tmp_path))
    console = Console(width=80, record=True, file=open("/dev/null", "w"), markup=False)  # noqa: SIM115
    for part in [*tables(found), *compared([found, found])]:
        console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for word in ("comp", "send", "idle", "optimizer"):
        assert word in text
    assert len(text.splitlines()) < 150
    if ranks == 64:
        assert "on rank" in text and "    63" in text


def test_a_folder_without_a_trace_is_refused(tmp_path):
    with pytest.raises(PlanError, match="holds no trace"):
        call(analyse, tmp_path)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    pipe(tmp_path / "run")
    with pytest.raises(PlanError, match="--png draws one run as timeline, 2 are given"):
        call(analyse, tmp_path / "run", tmp_path / "run", "--png", tmp_path / "t.png")
    with pytest.raises(PlanError, match="step 9 is not in"):
        call(analyse, tmp_path / "run", "--png", tmp_path / "t.png", "--step", 9)
    with pytest.raises(PlanError, match="give --png F or --html F too"):
        call(analyse, tmp_path / "run", "--step", 2)
    with pytest.raises(PlanError, match=r"cannot draw .*t\.what"):
        call(analyse, tmp_path / "run", "--png", tmp_path / "t.what")
    with pytest.raises(PlanError, match="cannot write"):
        call(analyse, tmp_path / "run", "--png", tmp_path / "none" / "t.png")


# the picture


def test_a_timeline_has_a_lane_a_rank_and_every_kind(tmp_path):
    from matplotlib.figure import Figure

    import hpcpar.trace
    from hpcpar.analyse.steps import of_steps, steps
    from hpcpar.draw.timeline import STYLES, _frame, _lanes

    pipe(tmp_path)
    trace = hpcpar.trace.open(tmp_path)
    first, last, lanes = of_steps(trace, steps(trace), 2, 2)
    axes = Figure().subplots()
    used = _lanes(axes, lanes, first, last)
    _frame(axes, {0: lanes[0]}, 2, 10.0, "title")
    assert used == {Kind.F, Kind.B, Kind.UPDATE, Kind.WAIT, Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE}
    drawn = {c.get_gid(): c for c in axes.collections if c.get_gid()}
    boxes = [path.vertices for path in drawn["F"].get_paths()]
    assert [(box[:, 0].min(), box[:, 0].max(), math.floor(box[:, 1].min())) for box in boxes] == [
        (0, 1, -1),
        (1, 2, -1),
        (1, 2, -2),
        (4, 5, -2),
    ]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["rank 0", "rank 1 missing"]
    looks = {(s.low, s.high, s.hatch, s.fill == "#333333") for s in STYLES.values()}
    assert len(looks) == len(STYLES)  # told apart without colour


# compare


def run_folder(folder, losses=(2.0, 1.0), weight=1.0, step=2):
    folder.mkdir()
    rows = [{"step": s, "loss": x, "grad_norm": x / 2, "tokens": 8} for s, x in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if step:
        values = {"head.weight": np.array([[1.0, 2.0]]), "norm.gain": np.array([weight])}
        tmp = checkpoint.prepare(folder / "checkpoints", step)
        entry = checkpoint.write_part(
            tmp, 0, [("weights", name, v.shape, tuple(slice(0, n) for n in v.shape), v) for name, v in values.items()]
        )
        checkpoint.commit(tmp, [entry], updates=step)
    return folder


def differences(capsys, *folders):
    assert call(compare, *folders, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_equal_runs_are_bit_equal(tmp_path, capsys):
    a = run_folder(tmp_path / "a")
    shutil.copytree(a, tmp_path / "b")
    found = differences(capsys, a, tmp_path / "b")
    assert (found["loss"], found["grad_norm"], found["weights"], found["notes"]) == (0, 0, 0, [])
    assert call(compare, a, tmp_path / "b") == 0
    assert capsys.readouterr().out.count("bit-equal") == 3


def test_differences_say_where_they_are(tmp_path, capsys):
    found = differences(capsys, run_folder(tmp_path / "a"), run_folder(tmp_path / "b", (2.0, 1.25), 1.0 + 2**-40))
    assert found["loss"] == pytest.approx(0.2) and found["loss_step"] == 2 and found["grad_norm"] == pytest.approx(0.2)
    assert found["weights"] == pytest.approx(2**-40) and found["worst_weight"] == "norm.gain"


def test_runs_of_other_lengths_are_infinitely_far_and_that_is_json(tmp_path, capsys):
    found = differences(capsys, run_folder(tmp_path / "a"), run_folder(tmp_path / "b", (2.0, 1.0, 0.5), step=3))
    assert found["loss"] == found["weights"] == math.inf and found["loss_common"] == 0
    assert "weights: the first run has a checkpoint of step00000002, the second a checkpoint of step00000003" in found["notes"]
    assert call(compare, tmp_path / "a", tmp_path / "b", "--json") == 0
    json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_run_without_a_checkpoint_has_no_weights_to_compare(tmp_path, capsys):
    found = differences(capsys, run_folder(tmp_path / "a"), run_folder(tmp_path / "b", step=0))
    assert found["loss"] == 0 and found["weights"] == math.inf and "the second no complete checkpoint" in found["notes"][-1]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(PlanError, match="is no run"):
        call(compare, run_folder(tmp_path / "a"), tmp_path / "none")
