"""The buckets of a real run, by its trace: one sum a bucket and step, as soon as its gradients are ready, under the backward."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from launch import HERE, compare, configuration, hpcpar

from hpcpar import config, trace
from hpcpar.forms.data import plan_buckets
from hpcpar.nn.describe import layers
from hpcpar.nn.parameters import FlatMap
from hpcpar.trace.schema import Axis, Kind, Operation

RUNS = {
    "own": {"plan__accumulate": 2, "plan__sync": {"algorithm": "mpi"}},
    "ring": {"plan__accumulate": 2, "plan__sync": {"algorithm": "ring"}},
    "thread": {"plan__accumulate": 2, "plan__sync": {"algorithm": "ring", "progress": "thread"}},
    "whole": {"plan__accumulate": 1, "plan__sync": {"algorithm": "auto"}},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run of each kind on two ranks: {name: (folder, description)}."""
    found = {}
    for name, settings in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        sync = {"bucket_mb": 0.02, "first_bucket_mb": 0.002, **settings["plan__sync"]}
        path = configuration(folder, plan__dp=2, plan__microbatches=2, **{**settings, "plan__sync": sync})
        done = hpcpar("train", path, "--out", folder / "out", ranks=2)
        assert done.code == 0, done.err
        found[name] = folder / "out", config.load(path)
    return found


def planned(cfg):
    """The bytes of each bucket, in the order in which the backward fills them: from the last parameter to the first."""
    names = FlatMap(layers(cfg.model)).names
    spans = [(s.start, s.stop) for s in names.values()]
    buckets = plan_buckets(spans, 4, cfg.plan.sync.bucket_mb * 1e6, cfg.plan.sync.first_bucket_mb * 1e6)
    assert [start for start, _ in buckets[:-1]] == [stop for _, stop in buckets[1:]] and len(buckets) > 3
    return [4 * (stop - start) for start, stop in buckets]


@pytest.mark.parametrize("name", RUNS)
def test_a_bucket_leaves_when_its_gradients_are_ready(folders, name):
    folder, cfg = folders[name]
    sizes, last = planned(cfg), cfg.plan.accumulate * cfg.plan.microbatches - 1
    found = trace.open(folder)
    for rank in range(2):
        events = found.events(rank)
        for step in range(1, cfg.train.steps + 1):
            mine = events[events["step"] == step]
            sums = mine[(mine["kind"] == Kind.COLLECTIVE) & (mine["operation"] == Operation.ALLREDUCE) & (mine["axis"] == Axis.DP)]
            sums = sums[np.argsort(sums["start"], kind="stable")]
            assert sums["bytes"].tolist() == sizes  # one a bucket and step, whatever is accumulated; in the order of the backward
            (backward,) = mine[(mine["kind"] == Kind.B) & (mine["microbatch"] == last)]
            assert (sums["start"] > backward["start"]).all() and (sums["start"] < backward["end"]).all()
            for earlier in mine[(mine["kind"] == Kind.B) & (mine["microbatch"] < last)]:
                assert earlier["end"] <= sums["start"].min()
            assert (np.diff(sums["start"]) > 0).all()


def test_analyse_shows_the_share_that_is_hidden(folders):
    for name in ("ring", "thread"):
        done = hpcpar("analyse", folders[name][0], "--json")
        assert done.code == 0, done.err
        rows = json.loads(done.out)["overlap"]
        assert len(rows) == 2 and all(row["collective_s"] > 0 and 0 < row["collective_hidden"] <= 1 for row in rows)


def test_two_ranks_have_the_bits_of_the_mpis_own_sum(folders):
    for name in ("ring", "thread"):
        found = compare(folders["own"][0], folders[name][0])
        assert found["loss"] == found["grad_norm"] == found["weights"] == 0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"plan__sync": {"algorithm": "ring", "mode": "asp"}}, "no all-reduce"),
        ({"plan__sync": {"algorithm": "ring"}, "plan__zero": 1}, "plan.zero = 1"),
        ({"plan__sync": {"algorithm": "rings"}}, "ring"),
        ({"plan__sync": {"progress": "thread"}, "run__device": "cuda"}, "device copies"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, settings, word):
    done = hpcpar("train", configuration(tmp_path, **settings), "--out", tmp_path / "out")
    assert (done.code, len(done.said)) == (2, 1) and word in done.said[0], done.err


def test_a_rank_that_fails_beside_its_progress_thread_ends_all(tmp_path):
    cfg = configuration(tmp_path, plan__dp=2, plan__sync={"progress": "thread", "bucket_mb": 0.01}, train__steps=1000)
    start = time.monotonic()
    program = (str(HERE / "faulty.py"), "raise", "1", "3")
    done = hpcpar("train", cfg, "--out", tmp_path / "out", ranks=2, program=program)
    assert (done.code, "ValueError: planted" in done.err, done.err.count("Traceback")) == (1, True, 1), done.err
    assert time.monotonic() - start < 60
