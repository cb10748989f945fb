"""Mixtures of experts whose layers and samples ranks cut, against one rank: tensor, sequence and context parallelism, alone and together.

The layer alone, every gate under every cut, is in test_experts_cut_layer.py; here are whole runs of five steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import proof
import pytest
import test_asynchronous
from mpi4py import MPI
from proof import GPT, LLAMA, Ran, compare, describe, run, serial
from styles_of_experts import DROPS, EXPERTS, RANDOM
from test_resharding import SYNC

from hpcpar.comm.world import World
from hpcpar.errors import Aborted
from hpcpar.run import agreement
from hpcpar.run.evaluate import evaluate
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

# 13 positions and an inner width of 18: neither 2 x 2 nor 4 divides them; the second block has experts.
SMALL = {"layers": 2, "width": 16, "heads": 4, "mlp_width": 18}
BATCH = (("batch", 8),)


def _styles() -> dict[str, dict[str, Any]]:
    """Each gate with drops, GELU and biases, and dropless, SwiGLU with a shared expert and one key/value head for each two ranks."""
    found: dict[str, dict[str, Any]] = {}
    for gate, more in EXPERTS.items():
        of = {"experts": 6, "gate": gate, "every": 2, **more}
        found[f"{gate} drops"] = {**GPT, **SMALL, "moe": {**of, **DROPS}}
        if gate != "expert-choice":
            moe = {k: v for k, v in of.items() if k != "capacity"} | {"shared": 1}
            found[f"{gate} dropless"] = {**LLAMA, **SMALL, "tied": False, "moe": moe}
    found["random"] = {**GPT, **SMALL, "dropout": 0.1, "moe": {"experts": 5, "every": 1, **RANDOM}}
    return found


STYLES = _styles()
proof.STYLES |= STYLES
PLANS: dict[int, tuple[dict[str, Any], ...]] = {
    2: (
        {"tp": 2},
        {"cp": 2, "microbatches": 2, "recompute": "full"},
        {"tp": 2, "sequence": True, "microbatches": 2, "recompute": "full"},
        {"cp": 2, "context": "ulysses"},
    ),
    3: ({"tp": 3, "sequence": True}, {"cp": 3, "context": "ring"}),
    4: (
        {"tp": 4, "sequence": True},
        {"cp": 2, "dp": 2, "context": "ulysses", "sync": SYNC},
        {"tp": 2, "cp": 2, "sequence": True},
        {"cp": 4, "context": "gather"},
        {"tp": 2, "dp": 2, "sync": SYNC, "accumulate": 2},
        {"tp": 2, "pp": 2, "microbatches": 4, "schedule": "zb-h1", "sequence": True},
        {"cp": 2, "pp": 2, "microbatches": 2, "context": "ring", "recompute": "full"},
    ),
    8: (
        {"tp": 2, "cp": 2, "pp": 2, "microbatches": 2, "sequence": True, "recompute": "full"},
        {"tp": 2, "cp": 2, "dp": 2, "sync": SYNC},
    ),
}


def cases(size: int, each: int) -> list[Any]:
    """(style, plan): every style under `each` of the plans of so many ranks, in turn."""
    plans = PLANS[size]
    styles = [s for s in STYLES if size != 3 or "dropless" not in s]  # 2 key/value heads for 3 ranks
    if size == 8:
        styles = ["gshard drops", "sigmoid-bias dropless", "random"]
    pairs = [(s, plans[(i * each + j) % len(plans)]) for i, s in enumerate(styles) for j in range(each)]
    if any(p.get("microbatches") == 4 for p in plans):  # groups of two samples
        pairs = [(s, plans[2] if s == "random" and p.get("microbatches") == 4 else p) for s, p in pairs]
    return [pytest.param(s, p, marks=pytest.mark.mpi(sizes=(size,)), id=f"{s}-{'-'.join(map(str, p.values()))}") for s, p in pairs]


def prove(world: World, style: str, plan: dict[str, Any], train: Any = BATCH) -> Ran:
    got = run(describe(style, plan, dict(train)), world)
    compare(got, serial(style, (), tuple(train)), exact=False)
    return got


@pytest.mark.parametrize("style, plan", [*cases(2, 2), *cases(3, 1), *cases(4, 1), *cases(8, 2)])
def test_cut_experts_are_the_serial_model(world: World, style: str, plan: dict[str, Any]) -> None:
    prove(world, style, plan)


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("plan", ({"tp": 2, "sequence": True}, {"cp": 2}), ids=("sequence", "cp"))
def test_recompute_uses_the_routing_of_the_forward(world: World, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcpar.nn import router

    want = serial("random", (), BATCH)
    calls, route = [], router.route
    monkeypatch.setattr(router, "route", lambda h, w, at, name: calls.append((at.step, at.first, name)) or route(h, w, at, name))
    compare(run(describe("random", {**plan, "microbatches": 2, "recompute": "full"}, dict(BATCH)), world), want, exact=False)
    assert len(calls) == len(set(calls)) == 5 * 2 * 2  # steps, microbatches, blocks


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize(
    "plan",
    (
        {"tp": 2, "cp": 2, "sequence": True, "zero": 1},
        {"tp": 2, "dp": 2, "zero": 3},
        {"cp": 2, "dp": 2, "zero": 2},
    ),
    ids=("1", "3", "2"),
)
def test_shards(world: World, plan: dict[str, Any]) -> None:
    prove(world, "gshard drops", {**plan, "sync": SYNC, "accumulate": 2})


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("name, tp", (("pipedream-2bw", 2), ("pipedream-2bw", 1)))
def test_a_pipeline_without_flushes(world: World, name: str, tp: int) -> None:
    plan = {"tp": tp, "cp": 2 // tp, "sequence": tp > 1, "schedule": name, "microbatches": 2}
    test_asynchronous.prove(world, "sigmoid-bias drops", plan, {"batch": 4, "clip": 0.0, "optimizer": "sgd"}, (3,), exact=False)


@pytest.mark.mpi(sizes=(4,))
def test_evaluation(world: World) -> None:
    """Held-out samples are routed in whole groups too; the last one is filled up."""
    found = []
    for where, plan in ((world, {"tp": 2, "cp": 2, "sequence": True}), (World(MPI.COMM_SELF.Dup()), {})):
        found.append(evaluate(Session(describe("random", plan, dict(BATCH)), where, Recorder()).trainer, 7))
    (loss, count), (want, every) = found
    assert count == every > 0 and loss == pytest.approx(want, rel=1e-12)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("plan", ({"tp": 2, "cp": 2, "sequence": True}, {"cp": 2, "dp": 2}, {"tp": 4}), ids=("tp cp", "cp dp", "tp"))
@pytest.mark.parametrize("style", ("noisy-topk drops", "expert-choice drops"))
def test_what_was_seen_is_counted_once(world: World, style: str, plan: dict[str, Any]) -> None:
    """The metrics of all ranks add up to those of one."""

    def seen(where: World, plan: dict[str, Any]) -> dict[str, float]:
        recorder, found = Recorder(), {}
        recorder.metric = lambda name, value: found.update({name: value})  # type: ignore[method-assign]
        session = Session(describe(style, plan, {**dict(BATCH), "steps": 1}), where, recorder)
        list(session.trainer.until(1))
        return {n: v for n, v in found.items() if n.startswith("moe.")}

    want = seen(World(MPI.COMM_SELF.Dup()), {})
    got = seen(world, plan)
    assert bool(got) == (world.rank % plan.get("tp", 1) == 0) and want
    for name, value in want.items():
        if name.rpartition(".")[2] not in ("entropy", "causal"):
            (total,) = world.allreduce(np.array([float(got.get(name, 0))]))
            assert total == pytest.approx(value, rel=1e-12, abs=1e-15), name
    weighted = got.get("moe.1.entropy", 0) * got.get("moe.1.routed", 0)
    (total,) = world.allreduce(np.array([float(weighted)]))
    assert total == pytest.approx(want["moe.1.entropy"] * want["moe.1.routed"], rel=1e-12)


@pytest.mark.mpi(sizes=(4,))
def test_routers_and_biases_that_drift_apart_are_found(world: World) -> None:
    """Sums over tp and replicas give all ranks the same bits of what they hold whole."""
    plan = {"tp": 2, "dp": 2, "sequence": True, "sync": SYNC}
    trainer = Session(describe("sigmoid-bias drops", plan, dict(BATCH)), world, Recorder()).trainer
    for _ in trainer.until(3):
        agreement.check(trainer)
    (part,) = trainer.parts.values()
    part.weights_by_name()["blocks.1.moe.experts.down.bias"][2] += (world.rank == 1) * 1e-9
    with pytest.raises((agreement.Diverged, Aborted), match=r"blocks\.1\.moe\.experts\.down\.bias"):
        agreement.check(trainer)
