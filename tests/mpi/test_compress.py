"""Compressed sums of gradients: each codec's law on hard arrays, and whole runs against a codec written once more in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from proof import compare, describe, run, serial
from workers import compressed

from hpcpar.config import Model, Sync
from hpcpar.forms.data import plan_buckets
from hpcpar.nn.describe import layers
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import FlatMap
from hpcpar.parallel.compress import CODECS, Compressed
from hpcpar.parallel.compress.powersgd import factored, sent
from hpcpar.parallel.compress.top_k import kept
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

SMALL = {"bucket_mb": 0.02, "first_bucket_mb": 0.002}
MODEL = Model(layers=2, width=10, heads=2, vocabulary=33, context=7, tied=False)


class Rig:
    """The reducer of a small model's gradients, with what every rank would put into it; `record` keeps the bytes of the messages."""

    def __init__(self, world, dtype="float64", bucket_mb=2e-3, **sync):
        self.world, self.map = world, FlatMap(layers(MODEL))
        self.flat = np.zeros(self.map.size, dtype)
        self.sync = Sync(**sync)
        self.bytes: dict[str, list[int]] = {}
        world.record = lambda kind, *_, operation="", bytes=0, **__: kind == "wait" or self.bytes.setdefault(operation, []).append(bytes)
        codec = CODECS[self.sync.compress].of(self.sync, self.map, self.flat, 1)
        self.reducer = Compressed(self.map, self.flat, world, 0, bucket_mb, bucket_mb / 4, codec)

    def of(self, rank, step, spread=6):
        """The gradient of a rank at a step: of many magnitudes, some of them zero."""
        rng = np.random.Generator(np.random.Philox(key=[rank, step]))
        g = rng.standard_normal(self.map.size) * 10.0 ** rng.integers(-spread, 3, self.map.size)
        g[rng.integers(0, g.size, 20)] = 0.0
        return g.astype(self.flat.dtype)

    def every(self, step):
        """Those of all ranks."""
        return [self.of(r, step) for r in range(self.world.size)]

    def sum(self, gradient, applied=True):
        """Through the reducer, in pieces as a backward would bring them; the sum, the same bits on all ranks."""
        self.flat[...] = gradient
        self.reducer.begin()
        for span in reversed(self.map.names.values()):
            self.reducer.ready(span.start, span.stop)
        self.reducer.start()
        self.reducer.finish()
        self.reducer.finish()  # a tied weight asks first, the update again
        self.reducer.settle(applied)
        bits = self.world.comm.allgather(self.flat.tobytes())
        assert len(set(bits)) == 1
        return self.flat.copy()

    def owed(self):
        """What all ranks owe together."""
        memory = self.reducer.codec.memory
        return sum(self.world.comm.allgather(memory.owed.copy()))


def relative(a, b):
    return np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_halves_are_within_their_bound(world, dtype):
    rig = Rig(world, dtype, compress="float16")
    every = [g.astype("float64") for g in rig.every(0)]
    got = rig.sum(rig.of(world.rank, 0)).astype("float64")
    exact, size = sum(every), sum(np.abs(g) for g in every)
    bound = 1.001 * 2**-11 * (size + np.abs(exact)) + (world.size + 1) * 2**-25
    assert (np.abs(got - exact) <= bound).all()
    assert (got != exact).any()
    n = rig.map.size
    assert sum(rig.bytes["alltoall"]) == sum(rig.bytes["allgather"]) == 2 * n  # an all-reduce of n elements is both, with whole elements


@pytest.mark.mpi(sizes=(2, 3))
def test_halves_that_overflow_are_infinite_everywhere(world):
    rig = Rig(world, compress="float16")
    g = rig.of(world.rank, 0, 2)
    g[5] = 65000.0  # each fits, their sum does not
    g[9] = 65504.0 if world.rank else 0.0
    g[11] = 1e5 if world.rank == 1 else 0.0
    got = rig.sum(g)
    assert np.isinf(got[5]) and np.isinf(got[11])
    assert np.isfinite(got[9]) == (world.size == 2)
    assert np.isfinite(np.delete(got, [5, 9, 11])).all()


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("sync", ({"compress": "top-k", "keep": 0.03}, {"compress": "powersgd", "rank": 2}), ids=("top-k", "powersgd"))
def test_nothing_is_lost(world, sync):
    """All that was applied and all that is owed are all gradients, but for a step that was skipped, which has never been."""
    rig = Rig(world, **sync)
    applied, true = np.zeros(rig.map.size), np.zeros(rig.map.size)
    for step in range(5):
        before = rig.reducer.codec.memory.owed.copy()
        got = rig.sum(rig.of(world.rank, step), applied=step != 2)
        if step == 2:
            assert np.array_equal(rig.reducer.codec.memory.owed, before)
        else:
            applied += got
            true += sum(rig.every(step))
            assert relative(got, sum(rig.every(step))) > 1e-3
        assert relative(applied + rig.owed(), true) <= 1e-12
    assert np.abs(rig.owed()).max() > 0


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("sync", ({"compress": "top-k", "keep": 0.03}, {"compress": "powersgd", "rank": 2}), ids=("top-k", "powersgd"))
@pytest.mark.parametrize("wrong", (np.nan, np.inf))
def test_what_is_not_finite_on_one_rank_reaches_all_and_stays_nowhere(world, sync, wrong):
    rig, alike = Rig(world, **sync), Rig(world, **sync)
    for step in range(4):
        g = rig.of(world.rank, step)
        if step == 1:
            bad = g.copy()
            bad[[3, 40, 500]] = wrong if world.rank == 1 else 1.0
            assert not np.isfinite(rig.sum(bad, applied=False)).all()
        assert np.array_equal(rig.sum(g), alike.sum(g))


@pytest.mark.mpi(sizes=(2, 3, 4))
def test_top_k_sends_places_and_values(world):
    rig = Rig(world, compress="top-k", keep=0.1, bucket_mb=4e-3)
    rig.sum(rig.of(world.rank, 0))
    sizes = [kept(high - low, 0.1) * world.size for low, high in rig.reducer.buckets]
    assert len(sizes) > 3
    assert sorted(rig.bytes["allgather"]) == sorted([4 * k for k in sizes] + [8 * k for k in sizes])


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_power_iteration_is_exact_where_the_rank_suffices(world, dtype):
    """The sum of one outer product a rank; also of zeros, and of something again after that."""
    rig = Rig(world, dtype, compress="powersgd", rank=4)
    for step in range(5):
        every = [np.zeros(rig.map.size, dtype) for _ in range(world.size)]
        for r, g in enumerate(every):
            rng = np.random.Generator(np.random.Philox(key=[r, step]))
            for view in rig.map.by_name(g).values():
                if view.ndim == 2:
                    view[...] = np.outer(rng.standard_normal(view.shape[0]), rng.standard_normal(view.shape[1])) * (step not in (1, 2))
                else:
                    view[...] = rng.standard_normal(view.shape)
        tolerance = 1e-12 if dtype == "float64" else 1e-2  # P is as ill-conditioned as the product of two random matrices
        assert relative(rig.sum(every[world.rank]), sum(every)) <= tolerance
    assert np.abs(rig.owed()).max() <= 100 * tolerance
    shapes = {n: s.shape for n, s in rig.map.names.items()}
    assert sum(rig.bytes["allreduce"]) == 5 * sent(shapes, 4) * rig.flat.itemsize < 5 * rig.flat.nbytes
    assert {n for n in shapes if factored(shapes[n], 4)} == set(rig.reducer.codec.factors)


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("rig", ({"compress": "top-k", "keep": 0.2}, {"compress": "powersgd", "rank": 1}, {"compress": "float16"}))
def test_messages_that_arrive_in_any_order_are_not_mixed_up(world, rig, monkeypatch):
    """Ranks that see different messages complete first, as from a slow link: the rounds of the buckets must not overtake each other."""
    from hpcpar.comm.pending import Pending

    draw, test = np.random.default_rng(world.rank), Pending.test
    plain = Rig(world, **rig)
    want = [plain.sum(plain.of(world.rank, step)) for step in range(3)]
    late = Rig(world, **rig)
    monkeypatch.setattr(Pending, "test", lambda self: draw.random() < 0.2 and test(self))
    for step in range(3):
        assert relative(late.sum(late.of(world.rank, step)), want[step]) <= 1e-12


@pytest.mark.mpi(sizes=(2, 3, 4))
def test_buckets_leave_and_go_on_while_the_backward_goes_on(world):
    rig = Rig(world, compress="float16")
    rig.flat[...] = rig.of(world.rank, 0)
    spans, first = list(reversed(rig.map.names.values())), rig.reducer.buckets[0][0]
    started = lambda: {p.facts["operation"] for p in world.outstanding} | set(rig.bytes)  # noqa: E731
    assert not started()
    for span in [s for s in spans if s.start >= first]:
        rig.reducer.ready(span.start, span.stop)
    assert "alltoall" in started()
    world.waiter.until(lambda: world.progress() or not world.outstanding, lambda: "the first round of the first bucket")
    later = [s for s in spans if s.start < first]
    rig.reducer.ready(later[0].start, later[0].stop)
    assert "allgather" in started()
    for span in later[1:]:
        rig.reducer.ready(span.start, span.stop)
    rig.reducer.finish()
    assert not world.outstanding


# whole runs


def naive_top_k(keep, sync):
    def of(model):
        spans = [(s.start, s.stop) for s in model.map.names.values()]
        buckets = plan_buckets(spans, 8, sync["bucket_mb"] * 1e6, sync["first_bucket_mb"] * 1e6)
        owed = [np.zeros(model.map.size) for _ in range(model.workers)]

        def code(gradients):
            total = np.zeros(model.map.size)
            for mine, g in zip(owed, gradients, strict=True):
                mine += g
                for low, high in buckets:
                    order = sorted(range(low, high), key=lambda i: (-abs(mine[i]), i))[: max(1, round(keep * (high - low)))]
                    total[order] += mine[order]
                    mine[order] = 0
            return total

        return code

    return of


def naive_powersgd(rank):
    """By projections: P (P'P)^-1 P' does not depend on the basis that P is written in."""

    def of(model):
        from hpcpar.parallel.compress.powersgd import first_factor

        owed = [np.zeros(model.map.size) for _ in range(model.workers)]
        q = {n: first_factor(n, s.shape[1], rank, model.cfg.train.seed) for n, s in model.map.names.items() if factored(s.shape, rank)}

        def code(gradients):
            for mine, g in zip(owed, gradients, strict=True):
                mine += g
            total = sum(owed)
            views, each = model.map.by_name(total), [model.map.by_name(mine) for mine in owed]
            for name, m in views.items():
                if name not in q:
                    for by in each:
                        by[name][...] = 0
                    continue
                u = np.linalg.svd(m @ q[name], full_matrices=False)[0]
                for by in each:
                    by[name][...] -= u @ (u.T @ by[name])
                m[...] = u @ (u.T @ m)
                q[name] = m.T @ u
            return total

        return code

    return of


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("style, plan", (("gpt-tied", {}), ("llama-untied", {"accumulate": 2})))
def test_a_run_with_top_k_is_the_papers(world, style, plan):
    cfg = describe(style, {"dp": world.size, **plan, "sync": {**SMALL, "compress": "top-k", "keep": 0.05}})
    compare(run(cfg, world), compressed(cfg, naive_top_k(0.05, SMALL)), exact=False)


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("style, plan", (("gpt-tied", {}), ("llama-untied", {"accumulate": 2})))
def test_a_run_with_powersgd_is_the_papers(world, style, plan):
    train = {"epsilon": 1e-5}
    cfg = describe(style, {"dp": world.size, **plan, "sync": {**SMALL, "compress": "powersgd", "rank": 2}}, train)
    compare(run(cfg, world), compressed(cfg, naive_powersgd(2)), exact=False, tolerance=1e-9)  # the bases that P is written in differ


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("sync", ({"compress": "top-k", "keep": 1.0}, {"compress": "powersgd", "rank": 256}), ids=("top-k", "powersgd"))
def test_all_that_is_there_is_the_plain_sum(world, sync):
    compare(run(describe("gpt-tied", {"dp": world.size, "accumulate": 2, "sync": {**SMALL, **sync}}), world), serial("gpt-tied", ()), False)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("schedule, chunks", (("1f1b", 1), ("interleaved", 2), ("zb-v", 2), ("chimera", 1)))
@pytest.mark.parametrize("sync", ({"compress": "top-k", "keep": 1.0}, {"compress": "powersgd", "rank": 256}), ids=("top-k", "powersgd"))
def test_each_stage_of_a_pipeline_has_its_own(world, sync, schedule, chunks):
    plan = {"dp": 2, "pp": 2, "schedule": schedule, "chunks": chunks, "microbatches": 4, "sync": {**SMALL, **sync}}
    compare(run(describe("deep-tied", plan), world), serial("deep-tied", ()), exact=False)


@pytest.mark.mpi(sizes=(2, 4))
def test_a_run_with_halves_is_near(world):
    """The first step's gradients, before differences grow."""
    pp = world.size // 2
    plan = {"dp": 2, "pp": pp, "microbatches": 2, "sync": {**SMALL, "compress": "float16"}}
    got = run(describe("gpt-tied", plan, {"steps": 1}), world)
    want = serial("gpt-tied", (), (("steps", 1),)).everywhere(0)
    for named in got.gradients[0].values():
        for name, g in named.items():
            assert np.abs(g - want[name]).max() <= 2e-3 * np.abs(want[name]).max() + 1e-6, name
            assert np.abs(want[name]).max() < 1e-6 or not np.array_equal(g, want[name]), name


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("compress", ("float16", "none"))
def test_a_gradient_beyond_half_precision_skips_the_step_on_all(world, monkeypatch, compress):
    """Finite on the one rank that has it, and too large for the wire: nothing is applied, and the next step is."""
    done = Gradients._done

    def large(self, layer, keys):
        if world.rank == 1 and trainer.steps == 2:
            self.views[layer][keys[0]].reshape(-1)[1] = 7e4
        return done(self, layer, keys)

    monkeypatch.setattr(Gradients, "_done", large)
    trainer = Session(describe("gpt-tied", {"dp": world.size, "sync": {"compress": compress}}), world, Recorder()).trainer
    assert [result.skipped for result in trainer.until(5)] == [step == 2 and compress == "float16" for step in range(5)]
    assert trainer.parts[0].applied == 5 - (compress == "float16")
    assert len(set(world.comm.allgather(trainer.parts[0].flat.tobytes()))) == 1 and np.isfinite(trainer.parts[0].flat).all()
