"""The layer of experts cut over ranks against the whole layer on one process: results, every gradient, messages; hard routings too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from styles_of_experts import EXPERTS

from hpcpar.comm.world import World
from hpcpar.config import build
from hpcpar.forms import expert
from hpcpar.nn import moe
from hpcpar.nn.context import Dispatch, Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.parameters import FlatMap
from hpcpar.parallel.expert import Exchange

SAMPLES, T, D, E = 2, 5, 6, 7  # a rank; experts do not divide
SIZES = (1, 2, 3, 4)


class Layer:
    """The layer on `ranks` ranks' samples: all of them, or those of one rank with its experts alone."""

    def __init__(self, fields: dict[str, Any], ranks: int, rank: int | None = None, dispatch: Dispatch | None = None, tilt: int = -1):
        model = build({"model": {"layers": 1, "width": D, "heads": 2, "context": T, "mlp_width": 5, "moe": {"experts": E, **fields}}}).model
        here = FlatMap([layers(model)[1]])
        draw = np.random.default_rng(3)
        self.w = here.weights(draw.normal(0, 0.6, here.size))[0]
        h, dy = draw.normal(size=(2, ranks * SAMPLES * T, D))
        if tilt >= 0 and "moe.router.weight" in self.w:  # all tokens to one expert
            h[:, 0] = 1.0
            self.w["moe.router.weight"][...] = 0
            self.w["moe.router.weight"][tilt, 0] = 9.0
        frame = Frame.of(model, 1, np, "float64")
        experts = fields.get("experts", E)
        first, self.held, rows = 0, slice(0, experts), slice(0, len(h))
        if rank is not None:
            assert dispatch is not None
            frame, first = replace(frame, dispatch=dispatch), rank * SAMPLES
            found = expert.held(experts, ranks, rank)
            self.held, rows = slice(found.start, found.stop), slice(first * T, (first + SAMPLES) * T)
            self.w = {k: v[self.held] if ".experts." in k else v for k, v in self.w.items()}
        self.rows = rows
        self.h, self.dy = h[rows].copy(), dy[rows].copy()
        self.at = Microbatch(frame, len(self.h) // T, T, 2, 3 + first, batch=ranks * SAMPLES)

    def run(self) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """y, dh and the gradients by short name."""
        y, saved = moe.forward(self.h, self.w, self.at, "blocks.0")
        again, saved = moe.forward(self.h, self.w, self.at, "blocks.0", moe.routing_of(saved))  # as recompute does
        assert np.array_equal(y, again)
        held: list[tuple[str, Any, Any]] = []
        dh = moe.backward(self.dy, saved, self.w, lambda *item: held.append(item), self.at, "blocks.0")
        found: dict[str, np.ndarray] = {}
        for part, backward_weight, of in held:  # later, as a W that is an action of its own
            dw, db = (np.full_like(self.w[k], np.nan) if k in self.w else None for k in (f"{part}.weight", f"{part}.bias"))
            backward_weight(of, dw, db, False)
            found.update({k: g for k, g in ((f"{part}.weight", dw), (f"{part}.bias", db)) if g is not None})
        return y, dh, found


def near(a: np.ndarray, b: np.ndarray, what: str) -> None:
    assert a.shape == b.shape and np.abs(a - b).max(initial=0) <= 1e-12 * max(1, np.abs(b).max(initial=0)), what


def prove(world: World, fields: dict[str, Any], tilt: int = -1) -> None:
    events: list[tuple[str, int]] = []
    world.record = lambda kind, start, end, **facts: kind == "collective" and events.append((facts["operation"], facts["bytes"]))
    whole = Layer(fields, world.size, tilt=tilt)
    part = Layer(fields, world.size, world.rank, Exchange(world), tilt)
    (y, dh, named), (y2, dh2, named2) = whole.run(), part.run()
    near(y2, y[part.rows], "y")
    near(dh2, dh[part.rows], "dh")
    assert named.keys() == named2.keys()
    for name, g in named.items():
        if ".experts." in name:
            near(named2[name], g[part.held], name)  # complete: the rows of all ranks were here
        else:
            near(world.allreduce(named2[name]), g, name)
    rows = sum(moe.routing_of(moe.forward(part.h, part.w, part.at, "blocks.0")[1]).counts)
    want = expert.moved_bytes(rows, D, 8, 2, E)
    forward, backward = want["dispatch"] // 2, want["dispatch"] // 2
    numbers = [rows * 8] * bool(fields.get("dropout"))
    sent = [n for operation, n in events if operation == "dispatch"][: 3 + 2 * len(numbers)]
    assert sent == [forward, *numbers, forward, *numbers, backward], (sent, rows)
    assert [n for operation, n in events if operation == "counts"] == [want["counts"]] * 2, "recompute exchanges no counts"


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("gate", EXPERTS)
def test_every_gate(world: World, gate: str) -> None:
    more = {"expert_groups": 1, "limit": 0} if gate == "sigmoid-bias" else {}  # 7 experts are no groups
    for capacity in ({}, {"capacity": None}) if gate != "expert-choice" else ({},):
        fields = {**EXPERTS[gate], **more, **capacity}
        prove(world, {"gate": gate, **{k: v for k, v in fields.items() if v is not None}})


@pytest.mark.mpi(sizes=SIZES)
@pytest.mark.parametrize("tilt", (0, E - 1))
def test_all_tokens_to_one_rank(world: World, tilt: int) -> None:
    """The others compute nothing, and their experts' gradients are exact zeros."""
    prove(world, {"gate": "switch", "k": 1}, tilt)
    part = Layer({"gate": "switch", "k": 1}, world.size, world.rank, Exchange(world), tilt)
    _, _, named = part.run()
    held = range(E)[part.held]
    for i, e in enumerate(held):
        assert bool(named["moe.experts.up.weight"][i].any()) == (e == tilt)


@pytest.mark.mpi(sizes=SIZES)
def test_no_token_at_all(world: World) -> None:
    prove(world, {"gate": "topk", "k": 2, "capacity": {"policy": "floor", "factor": 0.1}})


@pytest.mark.mpi(sizes=SIZES)
def test_there_and_back_are_adjoint(world: World) -> None:
    """<dispatch x, y> = <x, back y>, with counts of each rank's own, zeros among them."""
    draw = np.random.default_rng(world.rank)
    counts = tuple(int(n) for n in draw.integers(0, 4, E) * draw.integers(0, 2, E))
    move = Exchange(world)
    way = move.plan(counts, None, Microbatch(Frame.of(build({}).model, 1, np, "float64"), 1, 1), "blocks.0.moe")
    x = draw.normal(size=(sum(counts), 3))
    there = move.finish(move.start(x, way), way, 0)
    assert len(there) == sum(move.counts(way, 0))
    y = draw.normal(size=there.shape)
    back = move.finish_back([move.start_back(y, way, 0)], way)
    assert back.shape == x.shape
    left, right = world.allreduce(np.array([(there * y).sum(), (x * back).sum()]))
    assert left == pytest.approx(right, rel=1e-12, abs=1e-12)
    assert np.array_equal(move.finish_back([move.start_back(there, way, 0)], way), x)


@pytest.mark.mpi(sizes=(1,))
def test_who_holds_what() -> None:
    ranks = (4, 5, 6, 7, 8, 9)
    assert [list(expert.held(5, 2, i)) for i in range(2)] == [[0, 1, 2], [3, 4]]
    assert expert.exchange(ranks, 2, 7) == (6, 7) and expert.exchange(ranks, 3, 8) == (7, 8, 9) and expert.exchange(ranks, 6, 4) == ranks
    assert expert.replicas(ranks, 2, 7) == (5, 7, 9) and expert.replicas(ranks, 3, 8) == (5, 8) and expert.replicas(ranks, 6, 4) == (4,)
    assert expert.moved_bytes(9, 4, 8, 1, 5) == {}
