"""What the stash of a run holds after a forward is, to the byte, what the form of activation memory says."""

from __future__ import annotations

from collections import Counter

import pytest
from proof import describe

from hpcpar.forms.activations import Shape, block_elements, items, stage_items
from hpcpar.forms.context import FORMS
from hpcpar.run import memory
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session


class Watched(Recorder):
    """Keeps the samples of the stash."""

    def __init__(self):
        super().__init__()
        self.stash = []

    def memory(self, kind, held):
        super().memory(kind, held)
        if kind == "stash":
            self.stash.append(held)


def held(world, style, plan, train):
    """(session, the samples of the stash over one step)."""
    recorder = Watched()
    session = Session(describe(style, plan, {"steps": 1, **train}), world, recorder)
    for _ in session.trainer.until(1):
        pass
    return session, recorder.stash


def shape(session):
    """The shape of a microbatch on this rank."""
    c, at = session.config, session.pipeline.at
    return Shape.of(c.model, c.plan, c.train, session.size, at["tp"], at["cp"])


def kept(session):
    """What the form says that a microbatch leaves on this rank."""
    return sum((stage_items(p.stage.layers, shape(session)) for p in session.pipeline.parts.values()), Counter())


@pytest.mark.mpi(sizes=(1, 2, 3, 4))
@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("recompute", ("none", "full"))
@pytest.mark.parametrize("style, precision", (("cut-gpt-untied", "float32"), ("cut-llama-shared", "float64")))
def test_the_stash_is_that_of_the_form(world, style, recompute, sequence, precision):
    """Grouped queries, dropout, uneven heads, inner width, vocabulary and 39 rows: nothing is left out, nothing is counted twice."""
    plan = {"tp": world.size, "sequence": sequence and world.size > 1, "microbatches": 8, "recompute": recompute}
    session, stash = held(world, style, plan, {"precision": precision})
    want = kept(session)
    assert max(stash) == want.total(), dict(want)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("sequence", (False, True))
def test_every_stage_of_a_pipeline(world, sequence):
    plan = {"tp": 2, "pp": 2, "sequence": sequence, "microbatches": 3, "schedule": "gpipe"}
    session, stash = held(world, "cut-gpt-tied", plan, {})
    want = kept(session)
    assert max(stash) == 3 * want.total()


COMMAND = {
    "pipeline": {"pp": 2, "tp": 2, "microbatches": 4},
    "chunks": {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "interleaved", "chunks": 2},
    "sequence": {"tp": 2, "cp": 2, "sequence": True, "zero": 1},
    "recompute": {"tp": 2, "cp": 2, "sequence": True, "recompute": "full"},
    "heads": {"tp": 4, "sequence": True},
    "zero": {"dp": 4, "zero": 3},
    "two copies": {"pp": 2, "tp": 2, "schedule": "chimera", "microbatches": 4},
    "w later": {"pp": 4, "microbatches": 6, "schedule": "zb-h1"},
    "w later, more in flight": {"pp": 2, "tp": 2, "microbatches": 6, "schedule": "zb-h2", "sequence": True},
    "w later, chunks": {"pp": 2, "cp": 2, "microbatches": 4, "schedule": "zb-v", "context": "ulysses"},
    "w later, recompute": {"pp": 2, "tp": 2, "microbatches": 4, "schedule": "zb-h1", "recompute": "full"},
    "w later, two copies": {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "dualpipe"},
    **{form: {"tp": 2, "cp": 2, "context": form, "microbatches": 2} for form in FORMS},
    **{f"{form} in a pipeline": {"pp": 2, "cp": 2, "context": form, "microbatches": 3} for form in FORMS},
}


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("style", ("cut-deep", "cut-deep-llama"))
@pytest.mark.parametrize("plan", COMMAND.values(), ids=COMMAND)
def test_hpcpar_memory_says_what_a_run_keeps(world, plan, style):
    """Per rank, to the byte: items times microbatches in flight."""
    session, stash = held(world, style, plan, {"precision": "float32"})
    (said,) = (h for h in memory.held(session.config) if world.rank in h.ranks)
    kept_bytes = said.activations.report()
    assert max(stash) == kept_bytes["total_bytes"], kept_bytes


@pytest.mark.mpi(sizes=(1, 2, 4))
@pytest.mark.parametrize("sequence", (False, True))
def test_a_block_is_the_closed_form_and_what_is_itemised_beside_it(world, sequence):
    """e s b h (4 + 12 / t), with sequence parallelism 16 / t, where everything divides."""
    t = world.size
    plan = {"tp": t, "sequence": sequence and t > 1}
    session, stash = held(world, "even", plan, {"batch": 8})
    c, size = session.config, session.size
    block, *_ = (x for x in session.pipeline.parts[0].map.layers if x.kind == "block")
    found = items(block, shape(session))
    beside = found["log-sum-exp"] + found["norm statistics"]
    rows = size * c.model.context
    assert found.total() - beside == 8 * block_elements(rows, c.model.width, t, plan["sequence"])
    assert beside == 8 * (rows * c.model.heads // t + 4 * rows // (t if plan["sequence"] else 1))
    assert max(stash) == kept(session).total()


@pytest.mark.mpi(sizes=(1, 2, 4))
@pytest.mark.parametrize("sequence", (False, True))
def test_what_is_held_for_w_is_the_rank_s_rows(world, sequence):
    """Between I and W the inputs of the matrices after the norms are rows of this rank alone: nothing is gathered before W."""
    t = world.size
    plan = {"tp": t, "sequence": sequence and t > 1, "schedule": "zb-h1"}
    session, stash = held(world, "even", plan, {"batch": 4})
    m, (part,) = session.config.model, session.pipeline.parts.values()
    rows, d, v = session.size * m.context, m.width, part.map.names["tokens.weight"].shape[0]
    shard = rows // t if plan["sequence"] else rows
    block = 2 * shard * d + 2 * rows * d + (3 * rows * d + rows * d + 2 * 4 * rows * d) // t + 2 * 2 * d
    embedding = rows * d + (shard * d if plan["sequence"] else 0)
    head = shard * d + rows * v + 2 * d
    assert stash[2] == 8 * (m.layers * block + embedding + head) + 4 * rows
