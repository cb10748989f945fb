"""ZeRO as measured: volumes in the trace are the paper's exactly, memory is its formula and what `hpcpar memory` says."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import proof
import pytest
from proof import describe, run, serial

import hpcpar.trace
from hpcpar.analyse.memory import peaks
from hpcpar.analyse.steps import steps, training
from hpcpar.analyse.volumes import volumes
from hpcpar.forms.data import ring_bytes
from hpcpar.nn.describe import cut_stages
from hpcpar.nn.parameters import FlatMap
from hpcpar.parallel.zero.cut import shards_of
from hpcpar.parallel.zero.weights import Gathered
from hpcpar.run.memory import held
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session, train
from hpcpar.trace.schema import Axis, Kind, Operation

SMALL = {"bucket_mb": 0.03, "first_bucket_mb": 0.01}
SENT = {"allreduce": Operation.ALLREDUCE, "reduce_scatter": Operation.REDUCE_SCATTER, "allgather": Operation.ALLGATHER}


def trained(world, folder, style, plan, **settings):
    """Train into a folder and open its trace."""
    cfg = describe(style, plan, {"steps": 3, "eval_samples": 4, "eval_every": 2, **settings})
    train(cfg, folder, False, world, Recorder(), lambda: {}, {})
    return cfg, hpcpar.trace.open(folder)


def agrees(trace, cfg):
    """The largest memory samples of each rank are what `hpcpar memory` prints."""
    most = {row.pop("rank"): {k: b for k, b in row.items() if k != "stash" and b} for row in peaks(trace)}
    for alike in held(cfg):
        for rank in alike.ranks:
            assert most.pop(rank) == {**alike.kinds, **alike.buffers}
    assert not most


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("style, zero", (("gpt-tied", 0), ("llama-untied", 1), ("gpt-tied", 2), ("gpt-tied", 3), ("llama-untied", 3)))
def test_volume_and_memory_are_the_papers(world, shared_path, zero, style):
    n, k = world.size, 4
    plan = {"dp": n, "zero": zero, "microbatches": 2, "accumulate": 2, "sync": SMALL}
    cfg, trace = trained(world, shared_path, style, plan, batch=4 * n)
    psi = sum(FlatMap(layers).size for layers in cut_stages(cfg.model, "even", 1))
    times = {0: 2, 1: 2, 2: k + 1, 3: 3 * k}[zero]
    for step in (1, 2, 3):
        total = Fraction()
        for rank in range(n):
            events = training(trace.events(rank))
            mine = events[(events["step"] == step) & (events["kind"] == Kind.COLLECTIVE) & (events["axis"] == Axis.DP)]
            for name, operation in SENT.items():
                total += ring_bytes(name, int(mine["bytes"][mine["operation"] == operation].sum()), n)
        assert total / n == Fraction(8 * times * psi * (n - 1), n)
    rows = volumes(trace, steps(trace))["operations"]
    said = sum(r["ring_bytes_per_step"] for r in rows if r["axis"] == "dp" and r["operation"] in SENT)
    assert said == pytest.approx(8 * times * psi * (n - 1) / n, rel=1e-12)
    agrees(trace, cfg)
    for alike in held(cfg):
        formula = {0: 4, 1: 2 + 2 / n, 2: 1 + 3 / n, 3: 4 / n}[zero] * 8 * psi
        assert sum(alike.by_formula.values()) == pytest.approx(formula, rel=1e-12)
        assert sum(alike.kinds.values()) == pytest.approx(formula, rel=0.02)
        assert set(alike.buffers) <= {"tied gradient", "tied weight", "gradient buckets", "gathered weights"}


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "plan",
    (
        {"pp": 2, "dp": 2, "zero": 1},
        {"pp": 2, "dp": 2, "zero": 1, "schedule": "interleaved", "chunks": 2},
        {"pp": 4, "zero": 1, "schedule": "dualpipe", "microbatches": 8},
        {"pp": 2, "dp": 2, "schedule": "pipedream-2bw", "microbatches": 2},
        {"pp": 2, "dp": 2, "zero": 1, "schedule": "pipedream-2bw", "microbatches": 2},
        {"dp": 4, "zero": 3, "schedule": "zb-v", "chunks": 2},
        {"pp": 4, "schedule": "pipedream-vertical"},
    ),
    ids=lambda p: f"{p.get('schedule', '1f1b')}-{p.get('zero', 0)}",
)
def test_memory_of_pipelines_is_what_is_printed(world, shared_path, plan):
    cfg, trace = trained(world, shared_path, "deep-tied", {"microbatches": 1, **plan}, steps=8, eval_every=0)
    agrees(trace, cfg)


@pytest.mark.mpi(sizes=(3,))
@pytest.mark.parametrize("zero", (0, 1, 2, 3))
def test_what_is_counted_is_what_is_allocated(world, zero):
    """The arrays that stay, as the allocator sees them, are those of the memory samples."""
    tracemalloc.start(1)
    try:
        session = Session(describe("gpt-tied", {"dp": 3, "zero": zero, "microbatches": 2, "sync": SMALL}), world, Recorder())
        list(session.trainer.until(2))
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    finally:
        tracemalloc.stop()
    house = Path(hpcpar.__file__).parent
    places = [str(house / folder) for folder in ("run/part.py", "run/sharded.py", "nn", "parallel", "optim", "comm")]
    alive = sum(s.size for s in found.statistics("filename") if any(s.traceback[0].filename.startswith(p) for p in places))
    counted = sum(session.trainer.parts[0].held_bytes().values())
    assert counted <= alive <= counted * 1.01 + 4096


@pytest.mark.mpi(sizes=(2, 3))
def test_the_next_layer_is_on_its_way_when_one_is_handed_out(world, monkeypatch):
    """And a released one is never read: it is spoilt as soon as a pass is over."""
    take, iterate, seen = Gathered._take, Gathered.__iter__, []

    def spied(self, layer, following):
        out = take(self, layer, following)
        seen.append((layer, following if following in self._flying else None))
        return out

    def spoilt(self):
        yield from iterate(self)
        for array in (*self._slots, self._shared):
            array[...] = np.nan

    monkeypatch.setattr(Gathered, "_take", spied)
    monkeypatch.setattr(Gathered, "__iter__", spoilt)
    for style in ("gpt-tied", "llama-untied"):
        seen.clear()
        plan = {"dp": world.size, "zero": 3, "microbatches": 2, "recompute": "full", "sync": SMALL}
        proof.compare(run(describe(style, plan), world), serial(style, ()), exact=False)
        last = 6  # five blocks between the embedding and the head
        once = [(i, i + 1 if i < last else None) for i in range(last + 1)] + [(i, i - 1 if i else None) for i in range(last, -1, -1)]
        assert seen == once * (2 * proof.STEPS)


@pytest.mark.mpi(sizes=(2,))
def test_buckets_leave_while_the_backward_goes_on(world, shared_path):
    """Zero 2: at every microbatch its reduce-scatters are posted before its backward ends, in the order of the buckets."""
    cfg, trace = trained(world, shared_path, "gpt-tied", {"dp": 2, "zero": 2, "microbatches": 2, "sync": SMALL})
    at = FlatMap(cut_stages(cfg.model, "even", 1)[0])
    want = [8 * (high - low) for low, high in shards_of(at, 2, True, cfg.plan.sync, 8, 2).buckets]
    assert len(want) > 4
    events = training(trace.events(world.rank))
    sums = events[events["operation"] == Operation.REDUCE_SCATTER]
    sums = np.sort(sums[sums["kind"] == Kind.COLLECTIVE], order="start")
    backward = events[events["kind"] == Kind.B]
    assert len(backward) == 6 and len(sums) == 6 * len(want)
    for i, b in enumerate(np.sort(backward, order="start")):
        mine = sums[i * len(want) : (i + 1) * len(want)]
        assert mine["bytes"].tolist() == want
        assert (mine["start"] > b["start"]).all() and (mine["start"] < b["end"]).all()
