"""The traces of whole runs: clocks that are compared on the way, and what is left of a run that was killed."""

from __future__ import annotations

import json

import numpy as np
from launch import HERE, configuration, hpcpar

from hpcpar import trace
from hpcpar.analyse.steps import training
from hpcpar.trace.schema import Operation


def test_clocks_are_compared_between_steps_by_the_word_of_rank_0(tmp_path):
    cfg = configuration(tmp_path, plan__pp=3, plan__microbatches=2, run__clock_every_s=1e-6, train__steps=3)
    done = hpcpar("train", cfg, "--out", tmp_path / "out", ranks=3)
    assert done.code == 0, done.err
    found = trace.open(tmp_path / "out")
    assert (
        found.clocks["points"] == [4, 4]
        and found.clocks["left_s"] == 0
        and found.clocks["alone"] == dict.fromkeys(found.clocks["alone"], 0)
    )
    assert found.clocks["messages"] > 0 and found.clocks["meetings"] > 5
    for rank in found.present:
        assert found.clock(rank)["bound_ns"].min() >= 0
        events = found.events(rank)
        points = events[events["operation"] == Operation.CLOCK_POINT]
        assert len(points) == 4 and (points["step"] == 0).all()
        for step in (1, 2, 3):  # what a comparison takes is in no step
            mine = training(events)
            mine = mine[mine["step"] == step]
            assert not ((points["start"] < mine["end"].max()) & (points["end"] > mine["start"].min())).any()
    assert not found.gaps


def test_asynchronous_pipelines_compare_clocks_at_their_drains(tmp_path):
    settings = {"plan__pp": 2, "plan__schedule": "pipedream-2bw", "plan__microbatches": 2, "train__eval_every": 2, "train__eval_samples": 1}
    cfg = configuration(tmp_path, **settings, run__clock_every_s=1e-6, train__steps=6)
    done = hpcpar("train", cfg, "--out", tmp_path / "out", ranks=2)
    assert done.code == 0, done.err
    found = trace.open(tmp_path / "out")
    assert found.clocks["points"] == [4, 4]  # the start, after steps 2 and 4, the end
    assert (found.messages().pairs["received"] >= found.messages().pairs["sent"]).all()


def test_a_killed_run_is_analysed_as_far_as_it_went(tmp_path):
    cfg = configuration(tmp_path, plan__pp=2, plan__microbatches=2, train__steps=1000)
    out = tmp_path / "out"
    done = hpcpar("kill", 1, 4, "train", cfg, "--out", out, ranks=2, program=(str(HERE / "faulty.py"),))
    assert done.code != 0
    said = hpcpar("analyse", out, "--json")
    assert said.code == 0 and "Traceback" not in said.err, said.err
    report = json.loads(said.out)
    assert report["steps"]["last"] >= 3 and report["run"]["missing"] == {}
    assert any("rank 1" in line and "was not closed: the run was killed" in line for line in report["run"]["gaps"]) or any(
        line.startswith("ranks 0 and 1: was not closed") for line in report["run"]["gaps"]
    )
    (out / "trace.00000.h5").write_bytes((out / "trace.00000.h5").read_bytes()[:5000])
    told = hpcpar("analyse", out)
    assert told.code == 0 and "rank 0: left out, its file cannot be read" in " ".join(told.out.split())
    assert np.isfinite(report["steps"]["mean_s"])
