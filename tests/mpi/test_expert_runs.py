"""Experts cut over the ranks of a stage, in whole runs: with data parallelism, pipelines and shards, against one rank with all of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import proof
import pytest
from mpi4py import MPI
from proof import compare, describe, run, serial
from styles_of_experts import DROPS, STYLES

import hpcpar.trace
from hpcpar.analyse.memory import peaks
from hpcpar.analyse.steps import training
from hpcpar.comm.world import World
from hpcpar.errors import Aborted
from hpcpar.forms import expert
from hpcpar.nn.describe import layers
from hpcpar.nn.gates import hashed
from hpcpar.run import agreement
from hpcpar.run.evaluate import evaluate
from hpcpar.run.memory import held
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session, train
from hpcpar.trace.schema import Axis, Kind, Operation

SYNC = {"bucket_mb": 0.01, "first_bucket_mb": 0.001}


def other(gate: str) -> dict[str, Any]:
    """The style of a gate with drops where it has none, and without where it has."""
    moe = dict(STYLES[f"experts-{gate}"]["moe"])
    if moe.pop("capacity", None) is None:
        moe |= DROPS
    return {**STYLES[f"experts-{gate}"], "moe": moe}


def with_experts(**moe: Any) -> dict[str, Any]:
    return {**STYLES["experts-topk"], "moe": {**STYLES["experts-topk"]["moe"], **moe}}


GATES = ("noisy-topk", "gshard", "switch", "topk", "sigmoid-bias", "hash", "balanced")  # expert-choice has a capacity always
OTHERS = {f"{gate}-other": other(gate) for gate in GATES}
HARD = {
    "experts-five": with_experts(experts=5, shared=1),
    "experts-none": with_experts(capacity={"policy": "floor", "factor": 0.01}),  # every token is dropped
    "experts-many": {**with_experts(experts=16, gate="switch", k=1, z_loss=0.0), "layers": 2},  # of 13 tokens
    "one-first": {**with_experts(gate="hash", k=1, z_loss=0.0), "layers": 2},
    "one-last": {**with_experts(gate="hash", k=1, z_loss=0.0), "layers": 2},
}
proof.STYLES |= OTHERS | HARD


def prove(world, style, plan, train=()):
    got = run(describe(style, {"sync": SYNC, **plan}, dict(train)), world)
    compare(got, serial(style, (), tuple(train)), exact=False)
    return got


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("style", [*OTHERS, "experts-five", "experts-none"])
def test_every_gate_with_the_other_policy(world, style):
    prove(world, style, {"dp": 2, "ep": 2, "microbatches": 2})


@pytest.mark.mpi(sizes=(3,))
@pytest.mark.parametrize("style", STYLES)
def test_every_gate(world, style):
    prove(world, style, {"dp": 3, "ep": 3, "microbatches": 2})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("style", ("experts-gshard", "experts-sigmoid-bias", "experts-expert-choice"))
def test_uneven_experts_over_four(world, style):
    """Six over four: two ranks hold one more."""
    prove(world, style, {"dp": 4, "ep": 4, "microbatches": 3})


@pytest.mark.mpi(sizes=(2, 4))
def test_fewer_tokens_than_experts(world):
    prove(world, "experts-many", {"dp": world.size, "ep": world.size, "microbatches": 24 // world.size})


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("style, chosen", (("one-first", 0), ("one-last", 5)))
def test_all_tokens_to_one_expert(world, style, chosen, monkeypatch):
    """The other ranks compute no row, and the gradients of their experts are exact zeros."""
    monkeypatch.setattr(hashed, "ranked", lambda u: np.broadcast_to((np.arange(6) - chosen) % 6, u.shape).astype(np.int16))
    got = prove(world, style, {"dp": world.size, "ep": 2, "microbatches": 2})
    mine = expert.held(6, 2, world.rank % 2)
    for g in (named[0]["blocks.1.moe.experts.up.weight"] for named in got.gradients):
        assert [bool(of.any()) for of in g] == [e == chosen for e in mine]


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("style", ("experts-switch", "experts-sigmoid-bias"))
def test_recompute_takes_the_way_of_the_forward(world, style):
    """Counts are exchanged once for a microbatch and layer, rows three times: forward, forward again, gradients."""
    seen: Counter[str] = Counter()
    world.record = lambda kind, start, end, **facts: seen.update([facts["operation"]] if kind == "collective" else [])
    prove(world, style, {"dp": 2, "ep": 2, "accumulate": 2, "microbatches": 3, "recompute": "full"})
    routings = proof.STEPS * 6 * 2
    numbers = 2 if style == "experts-switch" else 0  # of rows, for dropout inside experts
    assert seen["counts"] == routings and seen["combine"] == 3 * routings and seen["dispatch"] == (3 + numbers) * routings


@pytest.mark.mpi(sizes=(2,))
def test_a_slow_rank(world):
    """It computes and sends its rows, late."""
    got = run(describe("experts-topk", {"dp": 2, "ep": 2}, {"steps": 2, "emulate": {"slow": {"1": 1.1}}}), world)
    compare(got, serial("experts-topk", (), (("steps", 2),)), exact=False)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "style, zero",
    (("experts-noisy-topk", 0), ("experts-random", 0), ("experts-random", 1), ("experts-sigmoid-bias", 1), ("experts-llama", 1)),
)
def test_two_replicas_of_each_expert(world, style, zero):
    prove(world, style, {"dp": 4, "ep": 2, "microbatches": 3, "zero": zero})


@pytest.mark.mpi(sizes=(4, 8))
@pytest.mark.parametrize(
    "schedule, style, more",
    (
        ("1f1b", "experts-switch", {"recompute": "full", "order": ("cp", "tp", "dp", "pp")}),
        ("interleaved", "experts-gshard", {"chunks": 2, "zero": 1}),
        ("zb-h1", "experts-sigmoid-bias", {}),
        ("zb-v", "experts-llama", {"chunks": 2}),
        ("dualpipe-v", "experts-topk", {"chunks": 2}),
        ("dualpipe", "experts-llama", {}),
        ("dualpipe", "experts-sigmoid-bias", {"zero": 1}),
        ("chimera", "experts-expert-choice", {}),
    ),
)
def test_pipelines(world, schedule, style, more):
    """Flushes of every kind: halves of a backward, two stages on a rank, two copies of a stage."""
    prove(world, style, {"dp": world.size // 2, "pp": 2, "ep": 2, "microbatches": 2, "schedule": schedule, **more})


@pytest.mark.mpi(sizes=(8,))
def test_all_of_a_stage_share_the_experts_of_copies(world):
    prove(world, "experts-llama", {"dp": 4, "pp": 2, "ep": 4, "microbatches": 2, "schedule": "chimera"})


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("plan", ({"dp": 4, "ep": 4}, {"dp": 2, "pp": 2, "ep": 2, "schedule": "chimera", "microbatches": 2}))
def test_held_out_samples(world, plan):
    """Seven samples: some replicas have none left, and run along."""
    found = []
    for at, plans in ((world, plan), (World(MPI.COMM_SELF.Dup()), {})):
        found.append(evaluate(Session(describe("experts-gshard", plans), at, Recorder()).trainer, 7))
    assert found[0][1] == found[1][1] > 0 and abs(found[0][0] - found[1][0]) < 1e-12


@pytest.mark.mpi(sizes=(4,))
def test_an_expert_that_drifts_from_its_replica_is_found(world):
    """Ranks 0 and 2 hold the same experts, 1 and 3 others: those are compared, and differ from the first ones without an alarm."""
    trainer = Session(describe("experts-gshard", {"dp": 4, "ep": 2}), world, Recorder()).trainer
    trainer.step()
    agreement.check(trainer)
    (part,) = trainer.parts.values()
    part.weights_by_name()["blocks.3.moe.experts.down.weight"][1, 2, 3] += (world.rank == 3) * 1e-9
    with pytest.raises((agreement.Diverged, Aborted), match=r"blocks\.3\.moe\.experts\.down\.weight on rank 3 differ from those on rank 1"):
        agreement.check(trainer)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("ep, zero", ((2, 0), (2, 1), (4, 1)))
def test_the_trace_and_the_memory_are_what_was_said(world, shared_path, ep, zero):
    """Bytes of gradients along both axes, of rows by the recorded routing; bytes held by kind."""
    steps = 2
    plan = {"dp": 4, "ep": ep, "zero": zero, "microbatches": 2, "sync": SYNC}
    cfg = describe("experts-topk", plan, {"steps": steps, "eval_samples": 4})
    train(cfg, shared_path, False, world, Recorder(), lambda: {}, {})
    trace, model = hpcpar.trace.open(shared_path), cfg.model
    said = {rank: {**alike.kinds, **alike.buffers} for alike in held(cfg) for rank in alike.ranks}
    for row in peaks(trace):
        assert said[row.pop("rank")] == {k: n for k, n in row.items() if k != "stash" and n}
    for rank in range(4):
        events = training(trace.events(rank))
        events = events[(events["kind"] == Kind.COLLECTIVE) & (events["step"] == steps)]
        gradients = expert.summed_elements(expert.cut_layer(layer, ep, rank % ep) for layer in layers(model))
        for axis, elements in gradients.items():
            mine = events[events["axis"] == Axis[axis.upper()]]
            mine = mine[np.isin(mine["operation"], (Operation.ALLREDUCE, Operation.REDUCE_SCATTER))]
            among = 4 if axis == "dp" else 4 // ep
            assert mine["bytes"].sum() == (elements * 8 if among > 1 or zero else 0), axis
        metrics = {m["name"].decode(): m["value"] for m in trace.metrics(rank) if m["step"] == steps}
        rows = int(sum(value for name, value in metrics.items() if ".tokens." in name))
        sent = {Operation[o.upper()]: n for o, n in expert.moved_bytes(rows, model.width, 8, ep, 6).items()}
        exchanged = events[events["axis"] == Axis.EP]
        for operation in (Operation.COUNTS, Operation.DISPATCH):
            times = 2 * 2 if operation == Operation.COUNTS else 1  # of microbatches and layers; rows are of all of them
            assert exchanged["bytes"][exchanged["operation"] == operation].sum() == times * sent[operation], (rank, operation)
    total = [sum(int(e["bytes"].sum()) for e in _of(trace, o)) for o in (Operation.DISPATCH, Operation.COMBINE)]
    assert total[0] == total[1] > 0


def _of(trace, operation):
    """The training events of an operation, by rank."""
    for rank in range(4):
        events = training(trace.events(rank))
        yield events[(events["kind"] == Kind.COLLECTIVE) & (events["operation"] == operation)]
