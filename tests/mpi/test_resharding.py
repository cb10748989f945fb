"""A checkpoint of any plan loads into any other: through every axis at once, weights and optimizer state by name, to the end of a run.

plan    (1) --save--> (2) --save--> (3) ...      every arrow: what was loaded is the saved, slice by slice, and saves as the same bits
steps    1             2             3           every step's loss and norm, and the state at the end, are those of one process
"""

from __future__ import annotations

import numpy as np
import pytest
import styles_of_experts  # noqa: F401  # adds its styles
from mpi4py import MPI
from proof import corpus, describe, host, run

from hpcpar import checkpoint
from hpcpar.analyse.difference import relative, rms
from hpcpar.comm.world import World
from hpcpar.errors import PlanError
from hpcpar.run import saving
from hpcpar.run.evaluate import evaluate
from hpcpar.run.held_out import held_out
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

SYNC = {"bucket_mb": 0.01, "first_bucket_mb": 0.002}
FLUSH = {"pp": 2, "microbatches": 4}
HALVES = {"pp": 2, "microbatches": 2}
ROWS = {"sequence": True}
ZERO = [(0, 1), (1, 3), (2, 2), (3, 3), (3, 1), (0, 3), (3, 2), (1, 2), (2, 3), (1, 1), (2, 1), (0, 2), (3, 3)]  # zero, dp
SHARDS = [{"zero": zero, "dp": dp} for zero, dp in ZERO]
GPT = [
    {"dp": 2, "tp": 2, "zero": 3},
    {**FLUSH, "tp": 2, "schedule": "zb-h1", **ROWS},
    {"pp": 3, "microbatches": 3},
    {"tp": 2, "cp": 2, "zero": 1, **ROWS},
    {},
    {"tp": 4, **ROWS},
    {**HALVES, "cp": 2, "schedule": "chimera"},
    {"cp": 4, "zero": 3},
    {"tp": 4},
    {"dp": 2, "tp": 2, "zero": 1},
]
LLAMA = [
    {"tp": 3},
    {"cp": 4},
    {**HALVES, "tp": 2, "zero": 1},
    {"dp": 2, "cp": 2, "zero": 2},
    {"cp": 2, "tp": 2, "zero": 0, "context": "gather", "order": ("tp", "cp", "dp", "pp")},
    {"tp": 3, "zero": 2},
    {**FLUSH, "dp": 2, "zero": 1, "schedule": "dualpipe"},
    {**HALVES, "cp": 2, "zero": 1},
    {"dp": 2, "offload": {"optimizer": True, "parameters": True}},
    {**FLUSH, "dp": 2, "schedule": "interleaved", "chunks": 2, "stages": (1, 1, 1, 0)},
    {"dp": 4, "zero": 3},
]
TOURS = [  # ranks, style, plans
    (3, "gpt-tied", SHARDS[:7]),
    (3, "llama-untied", SHARDS[6:]),
    (4, "gpt-tied", [{"pp": 2, "dp": 2, "zero": 1}, {"dp": 4, "zero": 3}, {"pp": 4, "zero": 1, "schedule": "dualpipe", "microbatches": 8}]),
    (4, "cut-gpt-tied", GPT),
    (4, "cut-llama-untied", LLAMA),
    (
        4,
        "experts-sigmoid-bias",
        [
            {"dp": 2, "ep": 2, "tp": 2},
            {"tp": 3},
            {"dp": 3, "ep": 3},
            {"tp": 2, "cp": 2, "zero": 1, **ROWS},
            {"dp": 4, "ep": 4},
            {"cp": 2, "tp": 2, "ep": 2},
            {"dp": 2, "zero": 3},
            {**FLUSH, "tp": 2, "schedule": "zb-v"},
        ],
    ),
    (
        4,
        "experts-llama",
        [
            {"dp": 2, "cp": 2, "ep": 4, "zero": 1},
            {**FLUSH, "dp": 2, "ep": 2, "zero": 1},
            {"cp": 4},
            {"dp": 2, "tp": 2, "zero": 2},
            {"dp": 4, "ep": 4, "zero": 1},
            {},
            {"dp": 4, "ep": 2, "zero": 1},
        ],
    ),
]


def session_of(style, plan, steps, comm):
    """A session under a plan, before anything is loaded; of a batch that every plan can cut."""
    cfg = describe(style, {"sync": SYNC, **plan}, {"steps": steps, "warmup": 2})
    return Session(cfg, World(comm, wait="auto", timeout_s=60.0), Recorder())


def same_bits(a, b):
    """Every tensor of two checkpoints."""
    one, other = checkpoint.open(a), checkpoint.open(b)
    assert one.kinds() == other.kinds() == ["adamw.m", "adamw.v", "weights"]
    for kind in one.kinds():
        assert one.names(kind) == other.names(kind)
        for name in one.names(kind):
            assert np.array_equal(one.read(kind, name), other.read(kind, name)), (kind, name)
    assert one.fields["applied"] == other.fields["applied"]


def loaded_is_saved(trainer, path):
    """What this rank holds, read from the arrays of the run, against the checkpoint's global arrays."""
    at = checkpoint.open(path)
    for part in trainer.parts.values():
        kinds = {"weights": part.weights_by_name(), **{f"adamw.{kind}": views for kind, views in part.state_by_name().items()}}
        for kind, views in kinds.items():
            for name, view in views.items():
                mine = at.read(kind, name)[part.map.parameters[name].slices]
                assert np.array_equal(host(view), mine), (kind, name)
    assert trainer.steps == at.step


def near(a, b):
    """Every tensor of two checkpoints to 1e-12, by the proof's measure."""
    one, other = checkpoint.open(a), checkpoint.open(b)
    assert one.kinds() == other.kinds() == ["adamw.m", "adamw.v", "weights"] and one.step == other.step
    assert one.fields["applied"] == other.fields["applied"]
    for kind in one.kinds():
        assert one.names(kind) == other.names(kind)
        every = {name: other.read(kind, name) for name in other.names(kind)}
        scale = rms(every)
        for name, want in every.items():
            assert relative(one.read(kind, name), want, scale) <= 1e-12, (kind, name)


@pytest.mark.parametrize(
    "style, plans", [pytest.param(style, plans, marks=pytest.mark.mpi(sizes=(n,)), id=f"{style}-{n}") for n, style, plans in TOURS]
)
def test_a_tour_through_every_axis(world, shared_path, style, plans):
    corpus()  # collective: on all ranks before some of them describe
    path, losses, norms, auxiliary = None, [], [], []
    for step, plan in enumerate(plans):
        ranks = describe(style, plan).plan.ranks
        mine = world.rank < ranks
        comm = MPI.COMM_WORLD.Split(0 if mine else 1)
        if mine:
            trainer = session_of(style, plan, len(plans), comm).trainer
            if path:
                saving.restore(trainer, path)
                loaded_is_saved(trainer, path)
                again = saving.save(trainer, shared_path / f"again{step}", 1)
                if world.rank == 0:
                    same_bits(path, again)
            (result,) = trainer.until(step + 1)
            losses.append(result.loss)
            norms.append(result.grad_norm)
            auxiliary.append(result.auxiliary)
            path = saving.save(trainer, shared_path / f"{step}", 1)
        path = MPI.COMM_WORLD.bcast(path)
    if world.rank == 0:
        alone = session_of(style, {}, len(plans), MPI.COMM_SELF.Dup()).trainer
        want = list(alone.until(len(plans)))
        assert np.allclose(losses, [r.loss for r in want], rtol=1e-12, atol=0)
        assert np.allclose(norms, [r.grad_norm for r in want], rtol=1e-12, atol=0)
        assert np.allclose(auxiliary, [r.auxiliary for r in want], rtol=1e-12, atol=0)
        near(path, saving.save(alone, shared_path / "alone", 1))


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("zero", (1, 2, 3))
def test_a_resumed_run_is_the_uninterrupted_one(world, shared_path, zero):
    cfg = describe("gpt-dropout", {"dp": world.size, "zero": zero, "microbatches": 2, "sync": SYNC})
    want = run(cfg, world)
    first, second = Session(cfg, world, Recorder()), Session(cfg, world, Recorder())
    losses = [r.loss for r in first.trainer.until(2)]
    saving.restore(second.trainer, saving.save(first.trainer, shared_path, 1))
    losses += [r.loss for r in second.trainer.until(cfg.train.steps)]
    assert losses == want.losses
    for name, w in second.trainer.parts[0].weights_by_name().items():
        assert np.array_equal(host(w), want.weights[0][name])


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize(
    "plan",
    ({"dp": 2, "zero": 3}, {"tp": 2}, {"dp": 2, "sync": {"mode": "local"}}, {"pp": 2, "schedule": "pipedream-2bw", "microbatches": 2}),
)
def test_a_run_begins_from_weights_alone(world, shared_path, plan):
    """`begin` takes the weights and nothing else: no optimizer state, no step, no updates, whatever tokens the checkpoint saw."""
    first = session_of("cut-llama-untied", {"pp": 2, "microbatches": 2}, 3, MPI.COMM_WORLD.Dup()).trainer
    list(first.until(2))
    path = saving.save(first, shared_path, 1)
    trainer = session_of("cut-llama-untied", plan, 3, MPI.COMM_WORLD.Dup()).trainer
    saving.begin(trainer, path)
    at = checkpoint.open(path)
    for part in trainer.parts.values():
        assert part.applied == 0 and all(not flat.any() for flat in part.state.values())
        for name, view in part.weights_by_name().items():
            assert np.array_equal(host(view), at.read("weights", name, part.map.parameters[name].slices)), name
    assert trainer.steps == 0 and [r.tokens > 0 for r in trainer.until(1)]


@pytest.fixture
def weights(world, shared_path):
    """The checkpoint of a run of no step, and its trainer."""
    trainer = session_of("gpt-tied", {"dp": world.size}, 1, MPI.COMM_WORLD.Dup()).trainer
    return saving.save(trainer, shared_path, 1), trainer


@pytest.mark.mpi(sizes=(1,))
def test_starts_that_cannot_be(world, weights, shared_path):
    def start(style, path):
        Session(describe(style, {}, {"start": str(path)}), world, Recorder())

    start("gpt-tied", weights[0])
    start("gpt-dropout", shared_path)  # another dropout is another way to train the same weights
    for style, path, said in (
        ("gpt-tied", shared_path / "nowhere", "nowhere holds no complete checkpoint"),
        ("gpt-untied", shared_path, "model.tied = True, not False"),
        ("deep-tied", shared_path, "model.layers = 5, not 9"),
    ):
        with pytest.raises(PlanError, match=said):
            start(style, path)
    part = weights[0] / "part00000.bin"
    part.write_bytes(part.read_bytes()[:-1] + b"!")
    with pytest.raises(PlanError, match=r"part00000\.bin is damaged"):
        start("gpt-tied", weights[0])


@pytest.mark.mpi(sizes=(1, 2))
def test_the_held_out_loss_of_a_checkpoint(world, weights, shared_path):
    """The run's own evaluation, under every plan; of as many samples as were asked for."""
    path, trainer = weights
    for samples in (1, 5, 11):
        want = evaluate(trainer, samples)
        for plan in ((), ("plan.tp=2",), ("plan.pp=2", "plan.microbatches=2"))[: 1 if world.size == 1 else 3]:
            found = held_out(path, samples, plan, world, Recorder())
            assert abs(found["held_out_loss"] - want[0]) <= 1e-12 * want[0], plan
            assert (found["labels"], found["samples"], found["step"]) == (want[1], samples, 0)
    for given, said in (((-1, ()), "is negative"), ((1, ("data.held_out=0",)), "nothing was held out")):
        with pytest.raises(PlanError, match=said):
            held_out(path, *given, world, Recorder())
