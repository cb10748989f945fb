"""The layer of experts whose inner width, rows or samples ranks cut, against the whole layer on one process: every gate, hard routings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from styles_of_experts import DROPS, EXPERTS, RANDOM

from hpcpar.comm.world import World
from hpcpar.config import Model, build
from hpcpar.forms import context, expert, mixture, tensor
from hpcpar.mesh import Mesh
from hpcpar.nn import moe
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import Parameter, layers
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import FlatMap
from hpcpar.nn.tally import Seen
from hpcpar.parallel.expert import Exchange
from hpcpar.parallel.routing import share
from hpcpar.parallel.tensor import cut_frame

SAMPLES, T, D, E = 4, 9, 6, 6
FIELDS: dict[str, dict[str, Any]] = {f"{gate} drops": {"gate": gate, **more, **DROPS} for gate, more in EXPERTS.items()}
FIELDS |= {f"{gate} dropless": {**of, "capacity": None} for gate, of in ((n.split()[0], f) for n, f in FIELDS.items())}
del FIELDS["expert-choice dropless"]
FIELDS |= {
    "random": {"gate": "topk", **RANDOM},
    "probability": {"gate": "gshard", "k": 2, "capacity": {"factor": 0.5, "order": "probability"}},
}
FIELDS["free"] = {"gate": "gshard", "k": 2, "capacity": {"policy": "gshard", "factor": 0.5, "skipped": "free"}}
CUTS = ("tp", "sequence", "zig-zag", "ring", "both", "experts")  # one alone on two and three ranks, both, or all experts too, on four
FOUR = ("both", "experts")
every_cut = pytest.mark.parametrize("cut", [pytest.param(c, marks=pytest.mark.mpi(sizes=(4,) if c in FOUR else (2, 3))) for c in CUTS])
Found = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], Seen]


def model_of(fields: dict[str, Any], gated: bool, positions: int = T, **more: Any) -> Model:
    moe = {"experts": E, "shared": 1 + gated, **{k: v for k, v in fields.items() if v is not None}, **more}
    style = {"mlp": "swiglu", "bias": False} if gated else {}
    return build({"model": {"layers": 1, "width": D, "heads": 6, "context": positions, "mlp_width": 7, "moe": moe, **style}}).model


class Layer:
    """The layer on `rows` of all samples with the pieces that `at_map` has."""

    def __init__(self, model: Model, frame: Frame, at_map: FlatMap, samples: int, positions: int, tilt: int = -1):
        whole = FlatMap([layers(model)[1]])
        draw = np.random.default_rng(3)
        flat = draw.normal(0, 0.6, whole.size)
        self.h, self.dy = draw.normal(size=(2, samples * model.context, D))
        if tilt >= 0:
            self.h[:, 0] = 1.0
            whole.weights(flat)[0]["moe.router.weight"][...] = 0
            whole.weights(flat)[0]["moe.router.weight"][tilt, 0] = 9.0
        self.map, mine = at_map, np.empty(at_map.size)
        for name, view in at_map.by_name(mine).items():
            view[...] = whole.by_name(flat)[name][at_map.parameters[name].slices]
        self.w = at_map.weights(mine)[0]
        self.at = Microbatch(frame, samples, positions, step=2, first=6, batch=2 * samples)

    def run(self, rows: Any) -> Found:
        """y, dh, the gradients by name, what was seen."""
        h = self.h[rows]
        y, saved = moe.forward(h, self.w, self.at, "blocks.0")
        (seen,) = self.at.frame.tally.take(2, "blocks.0.moe")
        again, saved = moe.forward(h, self.w, self.at, "blocks.0", moe.routing_of(saved))  # as recompute does
        assert np.array_equal(y, again) and not self.at.frame.tally.take(2, "blocks.0.moe")
        out = Gradients(self.map, np, "float64")
        out.flat[:] = np.nan
        dh = moe.backward(self.dy[rows], saved, self.w, lambda *item: out.add(0, *item), self.at, "blocks.0")
        return y, dh, {n: g for n, g in out.by_name().items() if ".moe." in n}, seen


def near(a: Any, b: Any, what: str) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and np.abs(a - b).max(initial=0) <= 1e-12 * max(1, np.abs(b).max(initial=0)), what


def of_experts(p: Parameter, own: range) -> Parameter:
    """What one rank has of a piece of all experts."""
    if ".experts." not in p.name or p.piece is None:
        return p
    return replace(p, piece=replace(p.piece, box=((own.start, own.stop), *p.piece.box[1:])))


def numbers_of(seen):
    """What a rank saw, as numbers that add up over ranks."""
    return [*seen.tokens, *(seen.wanted or ()), *map(float, seen[1:-1])]


def prove(world: World, model: Model, cut: str, samples: int = SAMPLES, tilt: int = -1) -> tuple[Layer, Found, list[tuple[str, str, int]]]:
    """One rank's share against the whole layer; returns it with what it sent."""
    events: list[tuple[str, str, int]] = []
    positions = model.context
    tp = {"tp": world.size, "sequence": world.size, "both": 2, "experts": 2}.get(cut, 1)
    cp, form, in_rows = world.size // tp, cut if cut in context.FORMS else "zig-zag", cut in ("sequence", *FOUR)
    mesh = Mesh.of(build({"plan": {"tp": tp, "cp": cp}}).plan)
    at = mesh.coordinates(world.rank)
    world.split((axis, mesh.group((axis,), r)) for axis in ("tp", "cp") for r in range(world.size) if mesh.size(axis) > 1)
    layers_of, samples_of = (world.of(x, mesh.group((x,), world.rank)) if mesh.size(x) > 1 else None for x in ("tp", "cp"))
    held = context.runs(form, positions, cp, at["cp"]) if cp > 1 else ()
    frame = share(cut_frame(Frame.of(model, 1, np, "float64", held), layers_of, in_rows), samples_of, layers_of, form)
    here = context.length(held) or positions
    layer = tensor.cut_layer(layers(model)[1], model, tp, at["tp"], in_rows)
    if cut == "experts":  # rows go to the rank of their expert, of those that have the same slice of it
        assert samples_of and model.moe
        own = expert.held(model.moe.experts, cp, at["cp"])
        layer = replace(layer, parameters=tuple(of_experts(p, own) for p in layer.parameters))
        frame = replace(frame, dispatch=Exchange(samples_of))
    pieces = FlatMap([layer])
    whole = Layer(model, Frame.of(model, 1, np, "float64"), FlatMap([layers(model)[1]]), samples, positions, tilt)
    part = Layer(model, frame, pieces, samples, here, tilt)
    places = part.at.places(np)
    rows = (np.arange(samples * positions) if places is None else places)[part.at.rows]
    world.record = lambda kind, start, end, **facts: (
        kind == "collective" and events.append((facts["axis"], facts["operation"], facts["bytes"]))
    )
    y, dh, named, seen = whole.run(slice(None))
    found = y2, dh2, named2, seen2 = part.run(rows)
    sent = list(events)
    near(y2, y[rows], "y")
    near(dh2, dh[rows], "dh")
    assert named.keys() == named2.keys()
    for name, g in named.items():
        p, mine = pieces.parameters[name], named2[name].copy()
        if samples_of and not (cut == "experts" and ".experts." in name):
            samples_of.allreduce(mine)
        if p.summed:
            assert layers_of
            layers_of.allreduce(mine)
        near(mine, g[p.slices], name)
    numbers = np.array(numbers_of(seen2))
    if samples_of:
        samples_of.allreduce(numbers)
    near(numbers, numbers_of(seen), "what was seen")
    return part, found, sent


@every_cut
@pytest.mark.parametrize("name", FIELDS)
def test_every_gate(world: World, name: str, cut: str) -> None:
    """Experts of 7 columns, 9 positions of 4 samples: nothing divides. GELU with biases and one shared expert, SwiGLU and two."""
    gated = (list(FIELDS).index(name) + CUTS.index(cut)) % 2 == 1
    prove(world, model_of(FIELDS[name], gated), cut)


HARD: dict[str, tuple[dict[str, Any], int, int, int]] = {  # fields, samples, positions, the expert that all tokens go to
    "all to one expert": ({"gate": "switch", "k": 1, "experts": 5}, SAMPLES, T, 4),
    "all to one with drops": ({"gate": "topk", "k": 2, "capacity": {"policy": "floor", "factor": 0.5}}, SAMPLES, T, 0),
    "no token": ({"gate": "topk", "k": 2, "capacity": {"policy": "floor", "factor": 0.01}}, SAMPLES, T, -1),
    "fewer tokens than experts": ({"gate": "topk", "k": 2, "experts": 7}, 1, 4, -1),
    "one expert": ({"gate": "topk", "k": 1, "experts": 1, "balance": 0.1}, SAMPLES, T, -1),
    "one group": ({"gate": "expert-choice", "k": 1, "group": SAMPLES, "capacity": {"factor": 0.3}}, SAMPLES, T, -1),
}


@every_cut
@pytest.mark.parametrize("what", HARD)
def test_hard_routings(world: World, what: str, cut: str) -> None:
    fields, samples, positions, tilt = HARD[what]
    if cut == "experts" and what == "one expert":
        return  # for two ranks
    part, (_, _, named, seen), _ = prove(world, model_of(fields, False, positions), cut, samples, tilt)
    if what == "no token":
        assert not sum(seen.tokens) and not any(named[f"blocks.0.moe.experts.{n}"].any() for n in ("up.weight", "down.bias"))
    if tilt == 4:
        assert seen.tokens == (0, 0, 0, 0, samples * part.at.positions)
        for e, g in enumerate(reversed(named["blocks.0.moe.experts.down.weight"])):
            assert g.any() == (e == 0 and (cut != "experts" or world.rank >= 2))


@every_cut
@pytest.mark.parametrize("gate", ("noisy-topk", "hash"))
def test_what_is_sent(world: World, gate: str, cut: str) -> None:
    """A forward, one more with the saved routing, a backward: scores once, gradients of weights once, the bytes of a dense MLP's sums."""
    model = model_of({"gate": gate, "k": 2}, False)
    part, (_, _, _, seen), sent = prove(world, model, cut)
    rows, router = part.at.samples * part.at.positions, gate == "noisy-topk"
    wanted: list[tuple[str, str, int]] = []
    if cut not in ("tp", "sequence"):
        wanted += [("cp", "scores", mixture.scores_bytes(model, SAMPLES, 8))] * router
    if cut in ("tp", "sequence", *FOUR):
        of_block = tensor.sent(layers(model)[1], model, rows, 8, cut != "tp", recompute=True, routed=sum(seen.tokens))
        attention = tensor.sent(layers(build({"model": {"width": D, "heads": 6}}).model)[1], model, rows, 8, cut != "tp", recompute=True)
        half = {k: n // 2 for k, n in attention.items()}
        for (operation, size), n in of_block.items():
            wanted += [("tp", operation, size)] * (n - half.get((operation, size), 0))
    assert sorted(s for s in sent if s[1] not in ("counts", "dispatch", "combine")) == sorted(wanted)
