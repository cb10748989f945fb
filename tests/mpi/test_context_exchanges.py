"""What cut samples exchange: adjoint laws, bytes against the closed forms, and in the trace who waits without the zig-zag."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from proof import GPT, LLAMA, STYLES, describe

from hpcpar.analyse.report import report
from hpcpar.comm.world import World
from hpcpar.config import tables
from hpcpar.forms.context import FORMS, RING, Sizes, heads_of, length, messages, runs, work
from hpcpar.ops import attention
from hpcpar.parallel.context import FORMS as REGISTRY
from hpcpar.parallel.context import ring
from hpcpar.parallel.context.gather import Gather
from hpcpar.parallel.context.ring import Home, Ring
from hpcpar.parallel.context.ulysses import Ulysses
from hpcpar.run.emulate import sleep_until
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session
from hpcpar.trace import open as open_trace
from hpcpar.trace.index import write_index
from hpcpar.trace.writer import Writer

SIZES = (1, 2, 3, 4, 8)
B, T, K = 2, 13, 3


def drawn(seed: int, rank: int, *shape: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=[seed, rank])).standard_normal(shape)


def same(world: World, ax_y: float, x_aty: float) -> None:
    """<Ax, y> = <x, A'y>, summed over the ranks."""
    a, b = world.allreduce(np.array([ax_y, x_aty]))
    assert a == pytest.approx(b, rel=1e-12, abs=1e-10)


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("form", RING)
def test_keys_travel_and_gradients_come_home(world: World, form: str) -> None:
    r = world.rank
    at, mine = Ring(world, form, T), length(runs(form, T, world.size, world.rank))
    x = drawn(1, r, 2, B, mine, 2, K)
    home, ax_y = Home(at, x.shape, x.dtype, np), 0.0
    for step, (block, kv) in enumerate(at.travel(x)):
        theirs = length(runs(form, T, world.size, block.source))
        assert np.array_equal(kv, drawn(1, block.source, 2, B, theirs, 2, K)), "the block of its source, as it was"
        posted = [p for p in world.outstanding if p.kind == "receive" and p.facts["operation"] == "keys_values"]
        assert len(posted) == (step + 1 < len(at.steps)), "the next block is on its way while this one is computed"
        y = drawn(10 + step, r, *kv.shape)
        ax_y += float((kv * y).sum())
        home.add(block, y.copy())
    same(world, ax_y, float((x * home.finish()).sum()))


@pytest.mark.mpi(sizes=SIZES)
def test_gather_and_scatter(world: World) -> None:
    at, mine = Gather(world, "gather", T), length(runs("gather", T, world.size, world.rank))
    x, y = drawn(1, world.rank, 2, B, mine, 2, K), drawn(2, world.rank, 2, B, T, 2, K)
    whole, back = np.stack(at.gathered(x[0], x[1])), np.full_like(x, np.nan)
    for r in range(world.size):
        theirs, start = drawn(1, r, 2, B, length(runs("gather", T, world.size, r)), 2, K), 0
        for run in runs("gather", T, world.size, r):
            assert np.array_equal(whole[:, :, run], theirs[:, :, start : start + run.stop - run.start])
            start += run.stop - run.start
    at.scattered(y, back[0], back[1])
    same(world, float((whole * y).sum()), float((x * back).sum()))


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("heads, groups", ((8, 8), (9, 3), (12, 1), (12, 2), (10, 5)))
def test_sequence_to_heads_and_back(world: World, heads: int, groups: int) -> None:
    at, r, n = Ulysses(world, "ulysses", T), world.rank, world.size
    t = length(runs("ulysses", T, n, r))
    every = [heads_of(heads, groups, n, i) for i in range(n)]
    cuts = [[h for h, _ in every], [g for _, g in every]]
    x = [drawn(1, r, B, t, heads, K), drawn(2, r, B, t, groups, K)]
    there = at.to_heads(x, cuts)
    for seed, a, cut in zip((1, 2), there, cuts, strict=True):
        lengths = [length(runs("ulysses", T, n, i)) for i in range(n)]
        whole = np.concatenate([drawn(seed, i, B, lengths[i], cut[-1].stop, K) for i in range(n)], axis=1)
        assert np.array_equal(a, whole[:, :, cut[r]])
    y, back = [drawn(3 + i, r, *a.shape) for i, a in enumerate(there)], [np.full_like(a, np.nan) for a in x]
    at.to_sequence(y, cuts, back)
    same(world, *(float(sum((a * b).sum() for a, b in zip(p, q, strict=True))) for p, q in ((there, y), (x, back))))


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("recompute", ("none", "full"))
@pytest.mark.parametrize("form", FORMS)
def test_traced_messages_are_the_closed_forms(world: World, form: str, recompute: str) -> None:
    """Every send, receive and collective of a step: partner, bytes and number, on each rank."""
    STYLES["counted"] = {**LLAMA, "layers": 2}
    cfg = describe("counted", {"cp": world.size, "context": form, "microbatches": 3, "recompute": recompute}, {"steps": 1})
    trainer, found = Session(cfg, world, Recorder()).trainer, Counter()

    def record(kind, start, end, operation="none", axis="none", peer=-1, **facts):
        if axis == "cp" and kind != "wait":
            found[kind, operation, peer, facts["bytes"]] += 1

    world.record = record
    assert len(list(trainer.until(1))) == 1
    m, forwards = cfg.model, 1 + (recompute == "full")
    at = Sizes(trainer.feed.size, m.context, m.heads, m.groups, m.head_width, world.size)
    want = Counter()
    for backward, times in ((False, forwards), (True, 1)):
        for x in messages(form, at, world.rank, backward):
            want[x.kind, x.operation, x.peer, 8 * x.elements] += times * m.layers * 3
    assert want and found == want


class Paced:
    """The operation, then a sleep of so many seconds a score: what a rank's share of the work takes on a machine where scores are all."""

    Saved, merge = attention.Saved, staticmethod(attention.merge)
    SECONDS = 30e-6

    @classmethod
    def forward(cls, q, k, v, out, first, between):
        saved = attention.forward(q, k, v, out, first, between)
        cls.sleep(q, k, first, between, 1)
        return saved

    @classmethod
    def backward_input(cls, dout, saved, dq, dk, dv, first, between):
        attention.backward_input(dout, saved, dq, dk, dv, first, between)
        cls.sleep(saved[0], saved[1], first, between, 2)

    @classmethod
    def sleep(cls, q, k, first, between, times):
        rows = q.shape[1]
        scores = rows * k.shape[1] if first else rows * (rows + 1) // 2
        sleep_until(time.perf_counter() + times * cls.SECONDS * scores, between)


@pytest.mark.mpi(sizes=(4,))
def test_the_ring_leaves_ranks_idle_and_the_zig_zag_does_not(world: World, shared_path, monkeypatch) -> None:
    """What `analyse` says of two traces that differ in the cut alone: rank 0 waits most of the time, or no rank does."""
    monkeypatch.setattr(ring, "attention", Paced)
    STYLES["long"] = {**GPT, "layers": 2, "width": 8, "heads": 1, "context": 64}
    busy, idle = {}, {}
    for form in RING:
        cfg, folder = describe("long", {"cp": 4, "context": form}, {"steps": 3, "batch": 2}), shared_path / form
        folder.mkdir(exist_ok=True)
        recorder = Recorder(Writer(folder, world.rank, 4, {"config": tables(cfg)}))
        trainer = Session(cfg, world, recorder).trainer
        world.record = recorder.message
        assert len(list(trainer.until(3))) == 3
        recorder.close()
        if world.rank == 0:
            write_index(folder, 4, {"config": tables(cfg)})
        world.barrier()
        said = report(open_trace(folder))
        busy[form], idle[form] = ([row[name] for row in said["shares"]] for name in ("compute", "wait"))
        sent = {row["operation"] for row in said["volumes"]["operations"] if row["axis"] == "cp" and row["kind"] == "send"}
        assert sent == {"keys_values", "keys_values_gradient"}
    assert [work("ring", 64, 1, 1, 4, r) for r in range(4)] == [136, 392, 648, 904]
    assert busy["ring"] == sorted(busy["ring"]) and busy["ring"][3] > 2.5 * busy["ring"][0]
    assert idle["ring"][0] > 0.5, "rank 0 has 136 of 904 scores of the slowest to compute"
    assert max(busy["zig-zag"]) < 1.5 * min(busy["zig-zag"])
    assert max(idle["zig-zag"]) < 0.5 * idle["ring"][0]


@pytest.mark.mpi(sizes=(1,))
def test_every_form_is_in_the_registry(world: World) -> None:
    assert set(REGISTRY) == set(FORMS) and set(REGISTRY.values()) == {Ring, Gather, Ulysses}
