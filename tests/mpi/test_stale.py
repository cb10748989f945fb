"""Stale and asynchronous data parallelism: bulk synchronous with staleness 0, else the very sequence of updates that took place."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from proof import Ran, compare, describe, host, run, serial

from hpcpar.data import Corpus
from hpcpar.layout import cut
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers, parameters
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import initial
from hpcpar.nn.stage import Stage
from hpcpar.ops.update import square_sum
from hpcpar.optim import OPTIMIZERS, rate
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session


class Noting(Recorder):
    """Keeps metrics and pulls."""

    def __init__(self):
        super().__init__()
        self.metrics: list[tuple[int, str, float]] = []

    def metric(self, name, value):
        self.metrics.append((self.step, name, value))


def started(world, style, train=(), **sync):
    """A session of a run in which every rank is a worker."""
    more = {k: sync.pop(k) for k in ("accumulate", "microbatches") if k in sync}
    plan = {"dp": world.size, "sync": {"mode": "ssp" if "staleness" in sync else "asp", **sync}, **more}
    return Session(describe(style, plan, dict(train)), world, Noting())


def everywhere(world, value):
    return world.share(world.gather(value))


def same_on_all(world, trainer):
    """Whether all ranks hold the same bits."""
    mine = trainer.part.flat.tobytes()
    return all(everywhere(world, mine)[0] == found for found in everywhere(world, mine))


# staleness 0


def together(world, style, train=(), **more):
    """A run with staleness 0, its results put together over the workers as those of one step."""
    session = started(world, style, train, staleness=0, **more)
    trainer, out, sums = session.trainer, Ran(), []
    trainer.updates = lambda worker, clock, gradient, scale: sums.append((worker, clock, gradient.copy()))
    lines = list(trainer.until(session.config.train.steps))
    n, at = world.size, trainer.part.map
    assert [w for w, _, _ in sums] == [-1] * session.config.train.steps, "one update a clock"
    for step, mine in enumerate(zip(*(lines[w::n] for w in range(n)), strict=True)):
        assert [r.worker for r in mine] == list(range(n)) and len({r.grad_norm for r in mine}) == 1
        out.losses.append(sum(r.loss * r.tokens for r in mine) / sum(r.tokens for r in mine))
        out.norms.append(mine[0].grad_norm)
        whole = np.concatenate(everywhere(world, sums[step][2]))
        out.gradients.append({0: {name: g.copy() for name, g in at.by_name(whole).items()}})
    out.weights = {0: {name: host(w) for name, w in trainer.part.weights_by_name().items()}}
    assert same_on_all(world, trainer)
    return out


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
@pytest.mark.parametrize("style", ("gpt-tied", "gpt-dropout", "llama-untied"))
def test_staleness_0_is_the_serial_model(world, style):
    compare(together(world, style), run_serial(style), exact=False)


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
@pytest.mark.parametrize("clip", (0.0, 1e-3))
def test_staleness_0_accumulated_and_clipped(world, optimizer, clip):
    train = {"optimizer": optimizer, "clip": clip}
    compare(together(world, "gpt-tied", train, accumulate=2, microbatches=2), run_serial("gpt-tied", train), exact=False)


@pytest.mark.mpi(sizes=(2,))
def test_staleness_0_is_bsp_bit_for_bit_on_two_ranks(world):
    """a + b has one order; without clipping the norm, whose squares are those of shards, changes nothing."""
    train = {"clip": 0.0, "warmup": 2}
    got, want = together(world, "gpt-tied", train), run(describe("gpt-tied", {"dp": 2}, train), world)
    for name, w in want.weights[0].items():
        assert np.array_equal(got.weights[0][name], w), name
    for a, b in zip(got.gradients, want.gradients, strict=True):
        assert all(np.array_equal(a[0][name], g) for name, g in b[0].items())


def run_serial(style, train=()):
    """What one process comes to."""
    return serial(style, (), tuple(dict(train).items()))


# one worker


@pytest.mark.mpi(sizes=(1,))
@pytest.mark.parametrize("mode", ({}, {"staleness": 0}, {"staleness": 3}), ids=("asp", "ssp 0", "ssp 3"))
@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
def test_one_worker_is_plain_training(world, mode, optimizer):
    session = started(world, "gpt-tied", {"optimizer": optimizer}, **mode)
    lines = list(session.trainer.until(session.config.train.steps))
    want = run_serial("gpt-tied", {"optimizer": optimizer})
    assert [r.loss for r in lines] == want.losses and [r.grad_norm for r in lines] == want.norms
    for name, w in session.trainer.part.weights_by_name().items():
        assert np.array_equal(w, want.weights[0][name]), name


# the oracle


class Replay:
    """One process that makes the updates in the order in which the owners made them, each gradient at the weights that its worker saw.

    w_o(v + 1) = w_o(v) - update(lr(clock) / N, clipped gradient of (worker, clock) at [w_1(v_1), ..., w_N(v_N)])    for each owner o
    """

    def __init__(self, cfg, n):
        self.cfg, self.n, t = cfg, n, cfg.train
        self.stage = Stage(layers(cfg.model), Frame.of(cfg.model, t.seed, np, "float64"))
        self.corpus = Corpus.of(cfg.data, cfg.model, t.seed)
        flat = np.zeros(self.stage.map.size)
        for name, view in self.stage.map.by_name(flat).items():
            view[...] = initial(self.stage.map.parameters[name], t.seed, dtype="float64")
        self.cuts = [cut(flat.size, n, o) for o in range(n)]
        self.rule = OPTIMIZERS[t.optimizer].of(t)
        self.state = [self.rule.state(c.stop - c.start, np, "float64") for c in self.cuts]
        self.applied = [0] * n
        self.shards = [[flat[c].copy()] for c in self.cuts]  # by owner and version
        self.losses: dict[tuple[int, int], float] = {}

    def stretch(self, first, last, order, pulls):
        """`order[o]`: (worker, clock) of owner o's updates; `pulls[w]`: (clock, versions) of worker w's pulls."""
        seen = {(w, first + 1): [0] * self.n for w in range(self.n)}
        seen |= {(w, clock + 1): found for w in range(self.n) for clock, found in pulls[w] if clock < last}
        for w in range(self.n):
            for clock, found in pulls[w]:
                assert all((w, clock) in order[o][:v] for o, v in enumerate(found)), "a worker reads its own writes"
        made, at = {}, [0] * self.n
        self.shards = [[versions[-1]] for versions in self.shards]
        while any(at[o] < len(order[o]) for o in range(self.n)):
            before = len(made), sum(at)
            for key, versions in seen.items():
                if key not in made and all(v < len(self.shards[o]) for o, v in enumerate(versions)):
                    made[key] = self.gradient(*key, np.concatenate([self.shards[o][v] for o, v in enumerate(versions)]))
            for o in range(self.n):
                while at[o] < len(order[o]) and order[o][at[o]] in made:
                    self.update(o, order[o][at[o]][1], *made[order[o][at[o]]])
                    at[o] += 1
            assert (len(made), sum(at)) != before, "an update whose gradient nobody can have made yet"
        assert all(sorted(done) == [(w, c) for w in range(self.n) for c in range(first + 1, last + 1)] for done in order)

    def gradient(self, worker, clock, flat):
        """Of the worker's share of the clock's batch, over its own labels, and what it is to be multiplied by."""
        p, t, model, n = self.cfg.plan, self.cfg.train, self.cfg.model, self.n
        count = p.microbatches * p.accumulate
        size = t.batch // count // n
        found, total, labels = Gradients(self.stage.map, np, "float64"), 0.0, 0
        places = [(k * n + worker) * size for k in range(count)]
        samples = [self.corpus.batch((clock - 1) * t.batch + place, size) for place in places]
        labels = sum(int((y >= 0).sum()) for _, y in samples)
        weights = self.stage.map.weights(flat)
        for k, (place, (ids, y)) in enumerate(zip(places, samples, strict=True)):
            at = Microbatch(self.stage.frame, size, model.context, clock - 1, place)
            loss, saved = self.stage.forward(ids, y.reshape(-1), weights, at)
            total += loss
            found.last = k == count - 1
            self.stage.backward(1.0 / labels, saved, weights, found.add, at)
        self.losses[worker, clock] = total / labels
        named, squares = found.by_name(), 0.0
        for name in parameters(model):
            squares += square_sum(named[name].reshape(-1))
        norm = math.sqrt(squares)
        return found.flat[: self.stage.map.size], min(1.0, t.clip / (norm + 1e-6)) if t.clip else 1.0

    def update(self, o, clock, gradient, scale):
        """The next version of owner o's shard."""
        w = self.shards[o][-1].copy()
        self.applied[o] += 1
        decays = [(s.start, s.stop, self.stage.map.parameters[n].decay) for n, s in self.stage.map.names.items()]
        here = self.cuts[o]
        mine = [(max(a, here.start) - here.start, min(b, here.stop) - here.start, d) for a, b, d in decays]
        g, lr = gradient[here].copy(), rate(self.cfg.train, clock - 1) / self.n
        self.rule.step(w, g, self.state[o], [x for x in mine if x[0] < x[1]], self.applied[o], lr, scale)
        self.shards[o].append(w)


def uneven(trainer, rank):
    """Every worker takes a while of its own for each clock."""
    draw, plain = np.random.default_rng(rank), trainer.executor.run

    def slower(*arguments):
        time.sleep(float(draw.choice([0.0, 0.002, 0.006])))
        plain(*arguments)

    trainer.executor.run = slower


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize(
    "style, train, sync",
    (
        ("gpt-tied", {}, {}),
        ("gpt-dropout", {"clip": 0.0, "optimizer": "sgd"}, {"accumulate": 2}),
        ("llama-untied", {"clip": 0.1}, {"staleness": 1}),
    ),
    ids=("asp", "asp accumulated", "ssp 1"),
)
def test_the_updates_that_took_place_give_these_weights(world, style, train, sync):
    session = started(world, style, {**train, "steps": 6, "warmup": 2}, **sync)
    trainer, order, oracle = session.trainer, [], Replay(session.config, world.size)
    trainer.updates = lambda worker, clock, gradient, scale: order.append((worker, clock))
    uneven(trainer, world.rank)
    for first, last in ((0, 4), (4, 6)):
        order.clear()
        lines = list(trainer.until(last))
        assert same_on_all(world, trainer), "at a drain all ranks have the same weights"
        orders = everywhere(world, order)
        pulls = everywhere(world, [(clock, found.versions) for clock, found in trainer.pulls])
        problem = ""
        if world.rank == 0:
            try:
                oracle.stretch(first, last, orders, pulls)
                steps = [(r.worker, first + 1 + i // world.size, r.loss) for i, r in enumerate(lines)]
                assert all(oracle.losses[w, clock] == loss for w, clock, loss in steps), "losses"
                assert np.array_equal(trainer.part.flat, np.concatenate([versions[-1] for versions in oracle.shards])), "weights"
            except AssertionError as e:
                problem = f"{e}, clocks {first + 1} to {last}"
        assert not world.share(problem)  # all ranks stop together


# the bound


def held_back(trainer, world, slow, ahead):
    """Worker `slow` begins a clock only when all others are `ahead` clocks ahead of it, or at the end: so the bound is reached for sure."""
    plain, last = trainer.executor.run, trainer.config.train.steps
    others = [w for w in range(world.size) if w != slow]

    def there():
        applied = trainer._server.window.words[2 + world.size :]
        return all(applied[w] >= min(last, trainer.steps + ahead) for w in others)

    def held(*arguments):
        world.waiter.until(lambda: time.sleep(1e-4) or there(), lambda: "the others")
        plain(*arguments)

    if world.rank == slow:
        trainer.executor.run = held


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("staleness", (1, 3))
def test_the_fastest_is_at_most_so_far_ahead(world, staleness):
    steps = 9
    session = started(world, "gpt-tied", {"steps": steps}, staleness=staleness)
    trainer, order = session.trainer, []
    trainer.updates = lambda worker, clock, gradient, scale: order.append((worker, clock))
    held_back(trainer, world, 0, staleness + 1)  # a worker at the bound finishes one clock more, and waits
    list(trainer.until(steps))
    clocks = [0] * world.size
    for worker, clock in order:  # the update of clock c + 1 was begun with c clocks done
        assert clock == clocks[worker] + 1 and clock - 1 - min(clocks) <= staleness
        clocks[worker] = clock
    found = [value for _, name, value in session.recorder.metrics if name == "staleness"]
    assert len(found) == steps and min(found) == 0 and max(found) <= staleness
    if world.rank != 0:
        assert max(found) == staleness, "the bound is reached"


@pytest.mark.mpi(sizes=(2, 3))
def test_asp_waits_for_nobody(world):
    """All others come to the end before worker 0 has begun."""
    session = started(world, "gpt-tied", {"steps": 7})
    held_back(session.trainer, world, 0, 7)
    list(session.trainer.until(7))
    found = [(step, value) for step, name, value in session.recorder.metrics if name == "staleness"]
    assert found[-1] == (7, 0.0)  # the drain
    if world.rank != 0:
        assert found[:-1] == [(step, float(step)) for step in range(1, 7)]


@pytest.mark.mpi(sizes=(2, 3))
@pytest.mark.parametrize("sync", ({}, {"staleness": 0}, {"staleness": 2}), ids=("asp", "ssp 0", "ssp 2"))
def test_labels_that_nobody_counts(world, sync):
    """A batch without labels on one worker, or on all, changes nothing, and no clock stands still."""
    for ignore, where in ((list(range(256)), "all"), ([], "none")):
        session = started(world, "gpt-tied", {"steps": 3}, **sync)
        object.__setattr__(session.corpus, "ignore", tuple(ignore))
        before = session.trainer.part.flat.copy()
        lines = list(session.trainer.until(3))
        assert all(r.skipped == (where == "all") for r in lines)
        assert np.array_equal(before, session.trainer.part.flat) == (where == "all")
        assert session.trainer.part.applied == (0 if where == "all" else 3 if sync == {"staleness": 0} else 3 * world.size)
