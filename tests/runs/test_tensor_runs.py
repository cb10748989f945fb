"""Whole runs with layers cut over ranks: checkpoints in global form, traces to the byte, replicas that drift apart."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
from launch import compare, configuration, hpcpar
from test_failures import faulty
from test_resume import forget_the_end, train

from hpcpar import checkpoint, config, trace
from hpcpar.forms import tensor
from hpcpar.forms.activations import Shape, stage_items
from hpcpar.nn.describe import layers
from hpcpar.trace.schema import Axis, Kind, Operation

CUT = {"model__heads": 4, "model__kv_heads": 1, "plan__tp": 2, "plan__sequence": True, "model__layers": 2}


@pytest.mark.long  # tests/mpi/test_resharding.py has the loads; this is the whole program
def test_resume_under_another_cut(tmp_path):
    whole = train(tmp_path, "whole", ranks=2, train__steps=10, **CUT)
    assert "tp 2" in whole.err
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    for name, plan, ranks in (
        ("one", {}, 1),
        ("same", {}, 2),
        ("more", {"plan__tp": 4, "plan__sequence": False}, 4),
        ("mixed", {"plan__tp": 2, "plan__pp": 2}, 4),
    ):
        first = {"plan__tp": 1, "plan__sequence": False} if name == "one" else {}
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        forget_the_end(tmp_path / name)
        train(tmp_path, name, "--resume", ranks=ranks, train__steps=10, **{**CUT, **first, **plan})
        found = compare(tmp_path / "whole", tmp_path / name)
        most = max(found["loss"], found["grad_norm"], found["weights"])
        assert most == 0 if name == "same" else most <= 1e-12, found
    assert summary["weights_sha256"] == checkpoint.weights_sha256(tmp_path / "same" / "checkpoints" / "step00000010")
    assert summary["parameters"] == sum(
        w.size for w in checkpoint.read_weights(checkpoint.newest(tmp_path / "whole" / "checkpoints")).values()
    )


def test_text_from_a_checkpoint_of_many_ranks(tmp_path):
    train(tmp_path, "cut", ranks=2, train__steps=4, **CUT)
    train(tmp_path, "one", ranks=1, train__steps=4, **{**CUT, "plan__tp": 1, "plan__sequence": False})
    said = [hpcpar("sample", tmp_path / out, "--prompt", "abc", "--tokens", 9, "--temperature", 0) for out in ("cut", "one")]
    assert [d.code for d in said] == [0, 0] and said[0].out == said[1].out
    held = [json.loads((tmp_path / out / "summary.json").read_text())["held_out_loss"] for out in ("cut", "one")]
    assert held[0] == pytest.approx(held[1], rel=1e-12)


@pytest.mark.parametrize("sequence", (False, True))
def test_the_trace_holds_what_the_forms_say(tmp_path, sequence):
    """Collectives over tp and the largest stash, from the files alone."""
    cut = {**CUT, "plan__sequence": sequence, "plan__microbatches": 4, "model__context": 11, "train__batch": 12}
    train(tmp_path, "out", ranks=2, train__steps=2, **cut)
    found, c = trace.open(tmp_path / "out"), config.load(tmp_path / "out" / "config.toml")
    samples = 3
    for rank in range(2):
        events = found.events(rank)
        mine = events[(events["kind"] == Kind.COLLECTIVE) & (events["axis"] == Axis.TP) & (events["step"] == 1)]
        got = Counter((Operation(int(e["operation"])).name.lower(), int(e["bytes"])) for e in mine)
        pieces = [tensor.cut_layer(layer, c.model, 2, rank, sequence) for layer in layers(c.model)]
        want = sum((tensor.sent(layer, c.model, samples * c.model.context, 8, sequence) for layer in pieces), Counter())
        assert got == Counter({k: 4 * n for k, n in want.items()}) + tensor.sent_shared(pieces, 8)
        memory = found.memory(rank)
        stash = memory["bytes"][(memory["kind"] == b"stash") & (memory["step"] == 1)]
        items = stage_items(pieces, Shape.of(c.model, c.plan, c.train, samples, rank))
        assert stash.max() == items.total()
        assert found.description["activations"][0][rank] == items


def test_a_replica_that_drifts_apart_is_named(tmp_path):
    cfg = configuration(tmp_path, plan__tp=2, plan__sequence=True, train__steps=9, train__check_replicas=2)
    done = faulty("drift", 1, 5, "train", cfg, "--out", tmp_path / "out", ranks=2)
    assert done.code == 1, done.err
    assert "after step 6 the weights of norm.gain on rank 1 differ from those on rank 0; they must be equal" in done.err
    assert done.err.count("Traceback") == 1
