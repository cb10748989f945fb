"""The operators of tensor and sequence parallelism, one by one: <Ax, y> = <x, A'y>, a loss over slices, and what is sent and when."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from proof import describe

from hpcpar.config import Model
from hpcpar.forms import tensor
from hpcpar.layout import cut
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.ops import cross_entropy, linear
from hpcpar.parallel.tensor import cut_frame
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

SIZES = (1, 2, 3, 4)
MODEL = Model(width=6, heads=6, vocabulary=11, context=5)


def at_of(world, in_rows, samples=3):
    frame = cut_frame(Frame.of(MODEL, 1, np, "float64"), world, in_rows)
    return Microbatch(frame, samples, MODEL.context)


def drawn(seed, rank, *shape):
    return np.random.Generator(np.random.Philox(key=[seed, rank])).standard_normal(shape)


def dot(world, a, b, one=False):
    """<a, b>: of pieces or copies of its own on each rank summed over ranks; of `one` vector that all ranks know, once."""
    here = float((a * b).sum())
    return here if one else float(world.allreduce(np.array([here]))[0])


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("samples", (1, 3, 8))
@pytest.mark.parametrize("in_rows", (False, True))
def test_boundaries_are_adjoint(world, in_rows, samples):
    at = at_of(world, in_rows, samples)
    rows, mine = samples * MODEL.context, at.rows
    outside = "rows" if in_rows else "one"
    for boundary, into, out in ((at.frame.enter, outside, "each"), (at.frame.leave, "each", outside)):
        x, y = (vector(world, seed, kind, rows, mine) for seed, kind in ((1, into), (2, out)))
        ax, ay = boundary.forward(x.copy(), at), boundary.backward(y.copy(), at)
        assert ax.shape == y.shape and ay.shape == x.shape
        assert dot(world, ax, y, out == "one") == pytest.approx(dot(world, x, ay, into == "one"), rel=1e-13, abs=1e-12)


def vector(world, seed, kind, rows, mine):
    whole = drawn(seed, world.rank if kind == "each" else 0, rows, MODEL.width)
    return whole[mine] if kind == "rows" else whole


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("in_rows", (False, True))
def test_gathering_again_gives_the_same(world, in_rows):
    for split in (False, True):
        at = at_of(world, in_rows)
        at = Microbatch(at.frame, at.samples, at.positions, split=split)
        x = vector(world, 1, "rows", 15, at.rows)
        kept = at.frame.enter.again(x, at)
        assert not split or kept is x  # what is held until W is the shard alone
        assert np.array_equal(at.frame.enter.input(kept, at), at.frame.enter.forward(x.copy(), at))


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("samples", (1, 3))
@pytest.mark.parametrize("in_rows", (False, True))
def test_embedding_is_the_whole_one_and_adjoint(world, in_rows, samples):
    at, slice_ = at_of(world, in_rows, samples), cut(MODEL.vocabulary, world.size, world.rank)
    rows = samples * MODEL.context
    ids = np.random.default_rng(4).integers(0, 4, (samples, MODEL.context)).astype(np.int32)  # some ranks have none of them
    ids[0, 0] = MODEL.vocabulary - 1
    tokens, places = drawn(1, 0, MODEL.vocabulary, MODEL.width), drawn(2, 0, MODEL.context, MODEL.width)
    x, saved = at.frame.vocabulary.embed(ids, {"tokens.weight": tokens[slice_], "positions.weight": places}, at)
    whole = tokens[ids.reshape(-1)] + np.tile(places, (samples, 1))
    assert np.array_equal(x, whole[at.rows])
    dy = drawn(3, 0, rows, MODEL.width)[at.rows]
    backward_weight, held = at.frame.vocabulary.embed_backward(dy, saved, at)
    dtokens, dplaces = np.full_like(tokens[slice_], np.nan), np.full_like(places, np.nan)
    backward_weight(held, dtokens, dplaces, False)
    total = dot(world, tokens[slice_], dtokens) + dot(world, places, dplaces, not in_rows)
    assert total == pytest.approx(dot(world, x, dy, not in_rows), rel=1e-13, abs=1e-12)
    first = dtokens.copy()
    backward_weight(held, dtokens, dplaces, True)
    assert np.allclose(dtokens, 2 * first, rtol=1e-15)


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("dtype, tolerance", (("float64", 1e-13), ("float32", 2e-6)))
@pytest.mark.parametrize("masked", ("none", "some", "all"))
@pytest.mark.parametrize("rows, scale", ((7, 1.0), (1, 3.0), (9, 300.0)))
def test_the_loss_over_slices(world, rows, scale, masked, dtype, tolerance):
    logits = (scale * drawn(5, 0, rows, MODEL.vocabulary)).astype(dtype)
    labels = (np.arange(rows, dtype=np.int32) * 5) % MODEL.vocabulary
    labels[:: {"none": rows + 1, "some": 2, "all": 1}[masked]] = -1 if masked != "none" else labels[0]
    want, kept = cross_entropy.forward(logits.copy(), labels)
    dwant = cross_entropy.backward_input(0.37, kept)
    mine = cut(MODEL.vocabulary, world.size, world.rank)
    vocabulary = at_of(world, False).frame.vocabulary
    got, saved = vocabulary.loss(logits[:, mine].copy(), labels)
    dgot = vocabulary.loss_backward(0.37, saved)
    assert got == pytest.approx(want, rel=tolerance, abs=tolerance)
    assert np.abs(dgot - dwant[:, mine]).max() <= tolerance * 0.37
    assert np.array_equal(dgot[labels < 0], np.zeros_like(dgot[labels < 0]))


class Kept(Recorder):
    """Keeps the collectives over tp, and the waits for them: (operation, bytes, start, end)."""

    def __init__(self):
        super().__init__()
        self.found, self.waits = [], []

    def message(self, kind, start, end, operation="none", axis="none", **facts):
        if kind in ("collective", "wait") and axis == "tp":
            (self.found if kind == "collective" else self.waits).append((operation, facts["bytes"], start, end))


def stepped(world, style, plan, watch=lambda: None):
    """The trainer after a step, and what it sent over tp; `watch` is called before the step."""
    kept = Kept()
    session = Session(describe(style, plan, {"steps": 1}), world, kept)
    world.record = kept.message
    watch()
    for _ in session.trainer.until(1):
        pass
    return session.trainer, kept.found


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("plan", ({"microbatches": 8}, {"microbatches": 2, "recompute": "full"}), ids=("kept", "recompute"))
@pytest.mark.parametrize("style", ("cut-gpt-tied", "cut-llama-shared"))
def test_sent_bytes_are_those_of_the_form(world, style, plan, sequence):
    """39 rows of a microbatch, which 2 and 4 do not divide."""
    trainer, found = stepped(world, style, {"tp": world.size, "sequence": sequence, **plan})
    (part,), model, rows = trainer.parts.values(), trainer.config.model, trainer.feed.size * trainer.config.model.context
    recompute = "recompute" in plan
    want = sum((tensor.sent(x, model, rows, 8, sequence, recompute) for x in part.map.layers), Counter())
    want = Counter({k: n * plan["microbatches"] for k, n in want.items()}) + tensor.sent_shared(part.map.layers, 8)
    assert Counter((o, b) for o, b, _, _ in found) == want
    if not recompute:
        block = tensor.sent(part.map.layers[1], model, rows, 8, sequence)
        elements = sum(n * tensor.link_elements(o, b / 8, world.size) for (o, b), n in block.items())
        assert elements == pytest.approx(tensor.layer_elements(rows, model.width, world.size, sequence), rel=1e-14)


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("sequence", (False, True))
def test_the_input_gradient_is_summed_while_the_weight_gradient_is_made(world, sequence, monkeypatch):
    """In the records of a step: the sum is posted before W begins and not waited for before it ends; the second gather is around dy w.

    The sum may be complete before: who waits for that gather lets all move.
    """
    made = {"backward_input": [], "backward_weight": []}

    def timed(name):
        plain, clock = getattr(linear, name), time.perf_counter_ns

        def call(*arguments, **named):
            start = clock()
            out = plain(*arguments, **named)
            made[name].append((start, clock()))
            return out

        monkeypatch.setattr(linear, name, call)

    plan = {"tp": world.size, "sequence": sequence}
    trainer, found = stepped(world, "cut-gpt-tied", plan, lambda: [timed(name) for name in made])
    summed = "reduce_scatter" if sequence else "allreduce"
    sums, waits = ([a for o, _, a, _ in of if o == summed] for of in (found, trainer.recorder.waits))
    gathers = [(a, b) for o, _, a, b in found if o == "allgather"]
    layers, products = trainer.config.model.layers, [end for _, end in made["backward_input"]]

    def overlaps(start, end):
        """Whether a sum is posted between the product before this W and the W, and the rank never stands still for it until W ends."""
        behind = max(t for t in products if t <= start)
        return any(behind <= a <= start for a in sums) and not any(behind <= a < end for a in waits)

    assert len(made["backward_weight"]) == 4 * layers + 1
    assert sum(overlaps(*w) for w in made["backward_weight"]) == 2 * layers + 1  # query, key and value; up; the head
    under = sum(any(a <= start and end <= b for a, b in gathers) for start, end in made["backward_input"])
    assert under == (2 * layers + 1 if sequence else 0)
