"""Local SGD and DiLoCo against one process that holds every worker; one model at the end, to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpi4py import MPI
from proof import compare, describe, host, run, serial
from workers import local

from hpcpar import config
from hpcpar.analyse.difference import relative, rms
from hpcpar.comm.world import World
from hpcpar.errors import PlanError
from hpcpar.parallel.average import Average
from hpcpar.parallel.outer import Outer
from hpcpar.run import feasible
from hpcpar.run.program import program_of
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "clip": 0.0, "weight_decay": 0.0}
DILOCO = {"outer_rate": 0.7, "outer_momentum": 0.9}


def prove(world, style, plan, sync, train=(), poison=()):
    """Every replica's gradients at every step, the losses, the norms and the weights; then one model on all ranks."""
    cfg = describe(style, {**plan, "sync": {"mode": "local", **sync}}, {"warmup": 2, **dict(train)})
    session = Session(cfg, world, Recorder())
    trainer, got = session.trainer, []
    mine = trainer.pipeline.replica

    def watch(found):
        got.append({n: host(g) for by in found.values() for n, g in by.items()})
        if (trainer.steps, mine) in poison and world.rank == max(trainer.pipeline.mesh.group(("pp", "tp"), world.rank)):
            stage, named = next(iter(found.items()))
            name = next(n for n, p in trainer.parts[stage].map.parameters.items() if p.counts)  # what tp does not cut is equal on all
            named[name][...] = np.nan  # on one rank of the replica: the whole pipeline skips

    trainer.watch = watch
    results = list(trainer.until(cfg.train.steps))
    want, gradients = local(cfg, frozenset(poison))
    assert trainer.steps == cfg.train.steps == len(results) == len(want.losses)
    for step, result in enumerate(results):
        assert relative(np.array(result.loss), np.array(want.losses[step]), 0.0) <= 1e-12
        assert math.isinf(result.grad_norm) if math.isinf(want.norms[step]) else abs(result.grad_norm / want.norms[step] - 1) <= 1e-12
        assert result.skipped == any(step == s for s, _ in poison)
        assert result.seconds > 0
        every = gradients[step][mine]
        for name, g in got[step].items():
            assert relative(g, every[name][boxes(trainer)[name]], rms(every)) <= 1e-12, f"gradient of {name}, step {step + 1}"
    weights, places = want.weights[0], boxes(trainer)
    for part in trainer.parts.values():
        for name, w in part.weights_by_name().items():
            assert relative(host(w), weights[name][places[name]], rms(weights)) <= 1e-12, f"weights of {name}"
    one_model(world, trainer)
    return trainer


def boxes(trainer):
    """What this rank holds of each parameter."""
    return {n: p.slices for part in trainer.parts.values() for n, p in part.map.parameters.items()}


def one_model(world, trainer):
    """Each piece of a parameter is the same bits on every rank that holds it, the two copies of a tied weight too."""
    named, places = [part.weights_by_name() for part in trainer.parts.values()], boxes(trainer)
    held = {(n, str(places[n])): host(w).tobytes() for by in named for n, w in by.items()}
    every = world.comm.allgather(held)
    assert all(other[key] == bits for other in every for key, bits in held.items() if key in other)
    assert sum(any(n == "tokens.weight" for n, _ in other) for other in every) >= trainer.config.plan.dp


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize(
    "style, optimizer, sync",
    (
        ("gpt-tied", "sgd", {"every": 1}),
        ("gpt-tied", "sgd", {"every": 2}),
        ("gpt-dropout", "adamw", {"every": 1}),
        ("gpt-dropout", "adamw", {"every": 3}),
        ("llama-untied", "sgd", {"every": 1, **DILOCO}),
        ("llama-untied", "adamw", {"every": 2, **DILOCO}),
    ),
    ids=("sgd 1", "sgd 2", "adamw 1", "adamw 3", "diloco 1", "diloco 2"),
)
def test_replicas_follow_the_paper(world, style, optimizer, sync):
    """Five steps: with periods of two and three the last one is partial."""
    prove(world, style, {"dp": world.size}, sync, {"optimizer": optimizer})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "schedule, chunks, style, sync",
    (
        ("1f1b", 1, "gpt-tied", {"every": 2}),
        ("zb-v", 2, "deep-tied", {"every": 3, **DILOCO}),
        ("gpipe", 1, "llama-untied", {"every": 2, **DILOCO}),
    ),
)
def test_a_replica_is_a_whole_pipeline(world, schedule, chunks, style, sync):
    plan = {"dp": 2, "pp": 2, "schedule": schedule, "chunks": chunks, "microbatches": 3, "accumulate": 2}
    prove(world, style, plan, sync)


@pytest.mark.mpi(sizes=(4, 8))
@pytest.mark.parametrize("style, sequence", (("cut-gpt-tied", True), ("cut-llama-shared", False)))
def test_a_replica_has_layers_cut_over_ranks(world, style, sequence):
    plan = {"dp": 2, "tp": 2, "pp": world.size // 4, "sequence": sequence, "microbatches": 2}
    prove(world, style, plan, {"every": 2, **DILOCO}, {"epsilon": 1e-5}, {(1, 0)})


@pytest.mark.mpi(sizes=(4, 8))
def test_a_tied_weight_stays_one_where_two_sums_round_apart(world, monkeypatch):
    """MPI may add the replicas of two stages in different orders: here the head's sum is one bit off."""
    mean = Average.mean

    def rounded(self, w, shares):
        mean(self, w, shares)
        w *= 1 + self._stage * 2.0**-52

    monkeypatch.setattr(Average, "mean", rounded)
    prove(world, "gpt-tied", {"dp": world.size // 2, "pp": 2, "microbatches": 3}, {"every": 2, **DILOCO})


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("style", ("gpt-tied", "llama-untied"))
def test_one_step_of_plain_sgd_is_bulk_synchronous(world, style):
    """Labels are masked, so that the replicas have unequal numbers of them."""
    got = run(describe(style, {"dp": world.size, "sync": {"mode": "local"}}, PLAIN), world)
    want = serial(style, (), tuple(PLAIN.items()))
    got.gradients, got.norms = [{0: want.everywhere(s)} for s in range(len(want.losses))], want.norms
    compare(got, want, exact=False)  # the gradients and norms of the replicas are their own


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("every", (1, 2))
def test_a_replica_skips_alone(world, every):
    """A whole period, a part of one, and a step that all skip; Adam's corrections count each replica's own updates."""
    train, everyone = {"epsilon": 1e-5}, {(3, r) for r in range(world.size)}
    prove(world, "gpt-tied", {"dp": world.size}, {"every": every, **DILOCO}, train, {(0, 1), (1, 1), (2, 0)})
    if every == 2:
        prove(world, "gpt-tied", {"dp": world.size}, {"every": every}, train, everyone)


@pytest.mark.mpi(sizes=(4,))
def test_a_pipeline_skips_as_one(world):
    prove(world, "gpt-tied", {"dp": 2, "pp": 2, "microbatches": 2}, {"every": 2}, {"epsilon": 1e-5}, {(1, 0), (2, 1)})


@pytest.mark.mpi(sizes=(2, 3, 4))
def test_equal_shares_are_exactly_the_mean(world):
    mine = [np.arange(7.0) * (r + 1) / 8 for r in range(world.size)]  # sums of these are exact, in any order
    average = Average(7, np, "float64", world, 0, Outer(1.0, 0.0))
    average.anchor(np.full(7, np.pi))
    w = mine[world.rank].copy()
    average.start(w, 1.0)
    average.mean(w, float(world.size))
    average.step(w)
    assert np.array_equal(w, sum(mine) / world.size)


@pytest.mark.mpi(sizes=(1,))
def test_weights_that_are_not_finite_do_not_enter():
    average = Average(3, np, "float64", World(MPI.COMM_SELF.Dup()), 2, Outer(1.0, 0.0))
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(FloatingPointError, match="1 of 3 weights of stage 2"):
            average.start(np.array([1.0, wrong, 2.0]), 1.0)


STREAM = {"dp": 2, "schedule": "pipedream-2bw"}
COPIES = {"dp": 2, "pp": 2, "microbatches": 4}
REFUSED = {
    "one replica": ({"sync": {"mode": "local"}}, {}, ["plan.dp = 1", 'mode = "bsp"']),
    "evaluation": ({"dp": 2, "sync": {"mode": "local", "every": 3}}, {"eval_every": 4}, ["train.eval_every = 4", "every = 3", "= 3 or 6"]),
    "sharded": ({"dp": 2, "zero": 1, "sync": {"mode": "local"}}, {}, ["plan.zero = 1"]),
    "versions": ({**STREAM, "sync": {"mode": "local"}}, {}, ["pipedream-2bw", "flush", "1f1b"]),
    "compressed versions": ({**STREAM, "sync": {"compress": "float16"}}, {}, ["float16", "flush", "1f1b"]),
    "two copies": ({**COPIES, "schedule": "chimera", "sync": {"mode": "local"}}, {}, ["chimera", "2 copies", "1f1b"]),
    "nothing to sum": ({"sync": {"compress": "top-k"}}, {}, ["top-k", "plan.dp = 1", '"none"']),
    "nothing summed": ({"dp": 2, "sync": {"mode": "local", "compress": "top-k"}}, {}, ["top-k", '"local"', '"bsp"']),
    "cut samples": ({"dp": 2, "cp": 2, "sync": {"mode": "local"}}, {}, ['"local"', "plan.cp = 2", "plan.cp = 1"]),
    "shards summed": ({"dp": 2, "zero": 2, "sync": {"compress": "top-k"}}, {}, ["plan.zero = 2"]),
}


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize("plan, train, words", REFUSED.values(), ids=REFUSED)
def test_refused_with_the_numbers_and_the_remedy(plan, train, words):
    cfg = describe("gpt-untied", plan, train)
    with pytest.raises(PlanError) as refusal:
        feasible.check_sharing(cfg)
        program_of(cfg)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.mpi(sizes=(1,))
def test_checkpoints_stand_behind_averages():
    cfg = config.build({"plan": {"dp": 2, "sync": {"mode": "local", "every": 3}}, "run": {"checkpoint_every": 2}})
    with pytest.raises(PlanError, match=r"run.checkpoint_every = 2 is no multiple .* use run.checkpoint_every = 3"):
        feasible.check_sharing(cfg)
