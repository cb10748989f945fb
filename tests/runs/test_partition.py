"""From a measured profile to a partition to a run: the plan that `partition` writes is one that `train` takes."""

from __future__ import annotations

import json
import tomllib

import pytest
from launch import compare, configuration, hpcpar

UNEVEN = {"model__layers": 5, "model__width": 32, "model__tied": False, "train__clip": 0.0, "train__precision": "float64"}


@pytest.mark.parametrize("flags, ranks", ((("--straight",), 3), ((), 3)), ids=("straight", "replicated"))
def test_a_partition_trains(tmp_path, flags, ranks):
    cfg = configuration(tmp_path, plan__schedule="pipedream", train__batch=6, **UNEVEN)
    done = hpcpar("profile", cfg, "--out", tmp_path / "profile.toml", "--rounds", 3)
    assert done.code == 0, done.err
    planned = tmp_path / "planned.toml"
    command = ("partition", tmp_path / "profile.toml", "--ranks", ranks, "--bandwidth", "1e9", "--write", planned, *flags)
    done = hpcpar(*command)
    assert done.code == 0, done.err
    plan = tomllib.loads(planned.read_text())["plan"]
    assert sum(plan.get("replicas") or [1] * plan["pp"]) * (1 if plan.get("replicas") else plan["dp"]) == ranks
    done = hpcpar("train", planned, "--out", tmp_path / "out", ranks=ranks)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["plan"]["stages"] == plan["stages"]


def test_the_partition_of_a_synchronous_pipeline_is_the_serial_model(tmp_path):
    cfg = configuration(tmp_path, **UNEVEN, plan__microbatches=4)
    assert hpcpar("profile", cfg, "--out", tmp_path / "profile.toml", "--rounds", 3).code == 0
    done = hpcpar("partition", tmp_path / "profile.toml", "--ranks", 2, "--straight", "--write", tmp_path / "planned.toml")
    assert done.code == 0, done.err
    assert hpcpar("train", tmp_path / "planned.toml", "--out", tmp_path / "cut", ranks=2).code == 0
    assert hpcpar("train", cfg, "--out", tmp_path / "whole").code == 0
    found = compare(tmp_path / "whole", tmp_path / "cut")
    assert (found["loss"], found["grad_norm"], found["weights"]) == (0, 0, 0)


def test_emulation_with_a_profile_of_another_model_is_refused(tmp_path):
    cfg = configuration(tmp_path, **UNEVEN)
    assert hpcpar("profile", cfg, "--out", tmp_path / "profile.toml", "--rounds", 2).code == 0
    cfg = configuration(tmp_path, train__emulate={"profile": str(tmp_path / "profile.toml")}, **{**UNEVEN, "model__layers": 4})
    done = hpcpar("train", cfg, "--out", tmp_path / "out")
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert "7 layers" in done.said[0]
