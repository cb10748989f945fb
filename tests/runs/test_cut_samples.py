"""Whole runs whose samples are cut: the serial run, its held-out loss and its checkpoints, whatever the plan that goes on from them."""

from __future__ import annotations

import json
import shutil

import pytest
from launch import compare, configuration, hpcpar

COMMON = {
    "train__precision": "float64",
    "train__steps": 6,
    "train__eval_samples": 11,
    "model__context": 13,
    "model__dropout": 0.1,
    "run__checkpoint_every": 3,
}


def train(tmp_path, out, *flags, ranks, **settings):
    done = hpcpar("train", configuration(tmp_path, **{**COMMON, **settings}), "--out", tmp_path / out, *flags, ranks=ranks)
    assert done.code == 0, done.err
    return json.loads((tmp_path / out / "summary.json").read_text())


def near(found):
    assert max(found["loss"], found["grad_norm"], found["weights"]) <= 1e-12, found


@pytest.mark.long
def test_cut_whole_and_cut_otherwise(tmp_path):
    """One rank; four ranks with Ulysses in a pipeline, which stop half-way; two replicas with the zig-zag, which go on from there."""
    want = train(tmp_path, "whole", ranks=1)
    got = train(tmp_path, "cut", ranks=4, plan__cp=2, plan__pp=2, plan__microbatches=2, plan__context="ulysses")
    near(compare(tmp_path / "whole", tmp_path / "cut"))
    assert abs(got["held_out_loss"] - want["held_out_loss"]) <= 1e-12
    assert got["tokens"] == want["tokens"] == 6 * 8 * 13
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step00000006")
    again = train(tmp_path, "cut", "--resume", ranks=4, plan__cp=2, plan__dp=2)
    near(compare(tmp_path / "whole", tmp_path / "cut"))
    assert abs(again["held_out_loss"] - want["held_out_loss"]) <= 1e-12


def test_a_profile_of_cut_samples_is_refused(tmp_path):
    done = hpcpar("profile", configuration(tmp_path, plan__cp=2), "--out", tmp_path / "profile.json")
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert "plan.cp = 2" in done.said[0] and "plan.cp = 1" in done.said[0]
