"""Asynchronous pipelines against the one-process oracle, bit for bit; versions alive against the proof from the lists."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import Oracle
from proof import Ran, describe, host

from hpcpar.run.recorder import Recorder
from hpcpar.run.streams import flow_of
from hpcpar.run.train import Session
from hpcpar.schedule.lifetimes import lifetimes


class Watched(Recorder):
    """Keeps the largest number of versions and of open gradient buffers."""

    most = 0

    def memory(self, kind, held):
        super().memory(kind, held)
        if kind == "parameters":
            self.most = max(self.most, held)


def prove(world, style, plan, train=(), drains=(), exact=True):
    """Run between the drains and compare with the oracle."""
    cfg = describe(style, plan, {"steps": 7, "batch": 6, "warmup": 2, **dict(train)})
    drains = [*drains, cfg.train.steps]
    recorder = Watched()
    session = Session(cfg, world, recorder)
    got, trainer = Ran(), session.trainer
    trainer.watch = lambda found: got.gradients.append({s: {n: host(g) for n, g in by.items()} for s, by in found.items()})
    for drain in drains:
        for result in trainer.until(drain):
            got.losses.append(result.loss)
            got.norms.append(result.grad_norm)
    want = Oracle(cfg).run(drains)
    assert got.losses == want.losses if exact else np.allclose(got.losses, want.losses, rtol=1e-12, atol=0)
    if max(plan.get("replicas", [1])) == 1:
        assert got.norms == want.norms if exact else np.allclose(got.norms, want.norms, rtol=1e-12, atol=0)
    for part in trainer.parts.values():
        for name, w in part.weights_by_name().items():
            a, b = host(w), want.weights[part.index][name][part.map.parameters[name].slices]
            if exact:
                assert np.array_equal(a, b), f"{name}: {np.abs(a - b).max():.3g}"
            else:
                assert np.abs(a - b).max() <= 1e-12 * max(np.abs(b).max(), 1e-3), name
        alone, rank = part.map.size * 8, trainer.pipeline.rank
        stretches = [flow_of(cfg, a, b).schedule() for a, b in zip([0, *drains[:-1]], drains, strict=True)]
        promised = max(lifetimes(stretch)[rank].weight_versions for stretch in stretches)
        assert recorder.most == promised * alone, f"{recorder.most / alone} versions alive, {promised} promised"
    return got


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
@pytest.mark.parametrize("drains", ((), (3,), (1, 2)))
def test_stashing(world, optimizer, drains):
    prove(world, "gpt-untied", {"pp": world.size, "schedule": "pipedream"}, {"clip": 0.0, "optimizer": optimizer}, drains)


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
@pytest.mark.parametrize("updates", ("lazy", "eager"))
@pytest.mark.parametrize("style, clip", (("gpt-tied", 0.5), ("llama-untied", 0.0), ("gpt-dropout", 1e-2)))
@pytest.mark.parametrize("drains", ((), (3,)))
def test_vertical_sync(world, style, clip, updates, drains):
    prove(world, style, {"pp": world.size, "schedule": "pipedream-vertical", "updates": updates}, {"clip": clip}, drains)


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
@pytest.mark.parametrize("updates", ("lazy", "eager"))
@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
@pytest.mark.parametrize("style", ("gpt-tied", "llama-untied"))
@pytest.mark.parametrize("drains", ((), (3,)))
def test_two_buffered_weights(world, style, optimizer, updates, drains):
    plan = {"pp": world.size, "schedule": "pipedream-2bw", "microbatches": 6 if world.size == 4 else 3, "updates": updates}
    prove(world, style, plan, {"clip": 0.5, "optimizer": optimizer}, drains)


@pytest.mark.mpi(sizes=(3, 4))
@pytest.mark.parametrize("drains", ((), (4,)))
def test_replicated_stages(world, drains):
    for replicas in {3: ([2, 1], [1, 2]), 4: ([3, 1], [2, 2], [1, 2, 1])}[world.size]:
        plan = {"pp": len(replicas), "replicas": replicas, "schedule": "pipedream"}
        prove(world, "gpt-untied", plan, {"clip": 0.0}, drains, exact=max(replicas) < 3)


@pytest.mark.mpi(sizes=(5,))
def test_replicas_that_do_not_divide(world):
    plan = {"pp": 2, "replicas": [3, 2], "schedule": "pipedream"}
    prove(world, "gpt-untied", plan, {"clip": 0.0}, (), exact=False)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize(
    "style, plan, train",
    (
        ("cut-gpt-untied", {"schedule": "pipedream"}, {"clip": 0.0}),
        ("cut-gpt-dropout", {"schedule": "pipedream-vertical"}, {"clip": 1e-2}),
        ("cut-llama-shared", {"schedule": "pipedream-2bw", "microbatches": 3}, {"clip": 0.5}),
    ),
    ids=("stashing", "vertical", "2bw"),
)
def test_stages_cut_over_ranks(world, style, plan, train, sequence):
    prove(world, style, {"pp": 2, "tp": 2, "sequence": sequence, **plan}, train, (4,), exact=False)


@pytest.mark.mpi(sizes=(8,))
def test_replicated_stages_cut_over_ranks(world):
    plan = {"pp": 2, "replicas": [3, 1], "tp": 2, "sequence": True, "schedule": "pipedream"}
    prove(world, "cut-gpt-untied", plan, {"clip": 0.0}, (), exact=False)
