"""`hpcpar partition`: what it prints, that `train` takes what it writes, and what it refuses."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
from profiles import made

from hpcpar import config
from hpcpar.cli.main import main
from hpcpar.errors import PlanError
from hpcpar.nn.describe import cut_stages
from hpcpar.plan.costs import Layers, Level, parse_levels
from hpcpar.plan.cut import Partition, Stage
from hpcpar.plan.described import described
from hpcpar.plan.partition import partition
from hpcpar.plan.predict import stage_times, step_timing
from hpcpar.run.feasible import microbatch_size
from hpcpar.run.program import program_of

UNEVEN = [0.002, 0.004, 0.004, 0.004, 0.004, 0.008]  # the head is two blocks


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "a.profile"
    made(UNEVEN).write(path)
    return path


def call(*arguments: object) -> int:
    return main(["partition", *map(str, arguments)])


def test_the_table_fits_80_columns_and_says_why(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(profile, "--ranks", 3, "--straight", "--bandwidth", 1e12) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and "…" not in out
    assert "predicted 10 ms a minibatch in steady state; one rank alone takes 26 ms" in out
    assert "bottleneck: compute of stage 0, embedding .. blocks.1; with blocks.1 on stage 1" in out.replace("\n", " ").replace("  ", " ")
    assert out.splitlines()[-2:] == ["plan.pp = 3", "plan.stages = [2, 2, 0]"]


def test_a_long_model_fits_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made([0.0123] * 66).write(tmp_path / "long")
    assert call(tmp_path / "long", "--ranks", 24, "--straight") == 0
    out = capsys.readouterr().out
    table, _, plan = out.partition("plan.pp")
    assert max(map(len, table.splitlines())) <= 80 and "…" not in table and "blocks.62 .. head" in table
    assert plan.count("\n") == 2  # the plan's lines are not broken: they are pasted


def test_json_is_what_the_table_says(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(profile, "--ranks", 8, "--levels", "4@1e8,2@1e10", "--memory", 1e9, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == 8 and found["levels"] == [
        {"components": 4, "bytes_per_s": 1e8},
        {"components": 2, "bytes_per_s": 1e10},
    ]
    assert sum(found["plan"]["stages"]) == 4 and sum(found["plan"]["replicas"]) == 8
    assert sorted(found["slots"]) == list(range(8))
    terms = [s[key] for s in found["stages"] for key in ("compute_s", "reduce_s", "send_s")]
    assert found["time_s"] == pytest.approx(max(terms)) == found["bottleneck"]["seconds"]
    assert [name for s in found["stages"] for name in s["layers"]] == ["embedding", *(f"blocks.{i}" for i in range(4)), "head"]


def test_a_written_straight_plan_is_one_that_train_takes(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert call(profile, "--ranks", 4, "--straight", "--write", path) == 0
    read = config.load(path)
    assert read.plan.pp == 4 and read.plan.replicas == () and read.plan.schedule == "1f1b" and read.plan.ranks == 4
    assert read.train.batch == 8 and microbatch_size(read) == 2
    assert program_of(read).schedule.stages == 4
    cut_stages(read.model, read.plan.stages, 4)


def test_a_written_plan_with_replicas_is_one_that_train_takes(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert call(profile, "--ranks", 5, "--bandwidth", 3e8, "--write", path) == 0
    read = config.load(path)
    assert read.plan.ranks == 5 and max(read.plan.replicas) > 1 and read.plan.schedule == "pipedream"
    assert microbatch_size(read) == 2
    assert program_of(read).schedule.replicas == read.plan.replicas
    cut_stages(read.model, read.plan.stages, read.plan.pp)


def test_every_cut_of_the_layers_is_one_that_stages_can_say() -> None:
    times = made([0.001] * 6)
    layers, model = Layers.of(times), config.build(times.config).model
    for count in range(1, 7):
        for cuts in combinations(range(1, 6), count - 1):
            ends = [*cuts, 6]
            stages = tuple(Stage(a, b - 1, 1, 0.0, 0.0, 0.0, 1, 0, (s,)) for s, (a, b) in enumerate(zip([0, *cuts], ends, strict=True)))
            blocks = Partition(layers, (Level(count),), stages, ()).blocks
            named = [tuple(layer.name for layer in stage) for stage in cut_stages(model, blocks, count)]
            assert named == [layers.names[s.first : s.last + 1] for s in stages]
            assert pytest.approx([0.0005 * (s.last - s.first + 1) for s in stages]) == stage_times(times, blocks).F


def test_the_clock_prefers_the_partition() -> None:
    times = made(UNEVEN)
    described_ = described(times, partition(Layers.of(times), (Level(2),), straight=True))
    assert described_.plan.stages == (3, 1)  # 14 and 12 ms
    # 1F1B, p = 2, m = 4, F = B, ms. Stages of 14 and 12: the first waits 5 for the gradient of microbatch 0 and 5 for that of the last.
    assert step_timing(times, described_, [3, 1]).makespan == pytest.approx(4 * 0.014 + 0.010)
    # Stages of 10 and 16: the second is never idle between the first one's F of 5 and its B of 5.
    assert step_timing(times, described_, [2, 2]).makespan == pytest.approx(4 * 0.016 + 0.010)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"model": {"layers": 4, "tied": True}}, "a tied weight has no common version"),
        ({"train": {"batch": 8, "clip": 1.0}}, "clipping by a global norm has no common version"),
    ],
)
def test_replicas_that_train_would_refuse_are_not_written(
    tables: dict, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    made([0.001] * 6, **tables).write(tmp_path / "p")
    assert call(tmp_path / "p", "--ranks", 2, "--bandwidth", 1e12, "--write", plan) == 2
    assert why in capsys.readouterr().err and not plan.exists()
    assert call(tmp_path / "p", "--ranks", 2, "--straight", "--write", plan) == 0


def test_a_schedule_with_more_stages_than_ranks_is_not_written() -> None:
    times = made([0.001] * 6, plan={"schedule": "zb-v", "microbatches": 4, "pp": 2})
    with pytest.raises(PlanError, match=r"zb-v holds more than one stage a rank, the partition has 2 stages .* --set plan.schedule=1f1b"):
        described(times, partition(Layers.of(times), (Level(2),), straight=True))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--ranks", 0], "--ranks 0: use at least 1"),
        (["--ranks", 7, "--straight"], "7 stages without replicas cannot be made of 6 layers"),
        (["--ranks", 2, "--memory", 1], "the smallest that would do is --memory"),
        (["--ranks", 2, "--memory", "nan"], "write a number of bytes"),
        (["--ranks", 2, "--bandwidth", 0], "write bytes/s"),
        (["--ranks", 2, "--bandwidth", 1e9, "--levels", "2@1e9"], "leave out --bandwidth"),
        (["--ranks", 6, "--levels", "4@1e9,2@1e10"], "joins 8 ranks, --ranks is 6"),
        (["--ranks", 2, "--levels", "2@fast"], "'2@fast' is no count@bytes/s"),
        (["--ranks", 2, "--write", "/nowhere/x.toml"], "cannot write /nowhere/x.toml"),
    ],
)
def test_refusals_are_one_line(arguments: list, why: str, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(profile, *arguments) == 2
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1


def test_the_memory_that_is_named_does(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(profile, "--ranks", 3, "--memory", 5) == 2
    least = int(capsys.readouterr().err.partition("would do is --memory ")[2].partition(";")[0])
    assert call(profile, "--ranks", 3, "--memory", least) == 0
    assert call(profile, "--ranks", 3, "--memory", least - 1) == 2


def test_levels_are_read_outermost_first() -> None:
    assert parse_levels("4@1e9,2@1e10", 8) == (Level(2, 1e10), Level(4, 1e9))
