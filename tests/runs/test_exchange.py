"""Weights out of one run and into another, as a user moves them: export, import, a start from them, their held-out loss."""

from __future__ import annotations

import json

import pytest
from launch import configuration, hpcpar

from hpcpar import checkpoint

COMMON = {
    "train__precision": "float64",
    "train__eval_samples": 10,
    "model__norm": "rms",
    "model__position": "rotary",
    "model__mlp": "swiglu",
    "model__kv_heads": 1,
    "model__tied": False,
    "model__layers": 2,
}


def good(*arguments, ranks=1):
    """What a command that must succeed says on stdout."""
    done = hpcpar(*arguments, ranks=ranks)
    assert done.code == 0, done.err
    return done.out


def summary(folder):
    """What a run came to."""
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run over two stages, exported and imported."""
    at = tmp_path_factory.mktemp("exchange")
    good("train", configuration(at, **COMMON, plan__pp=2, plan__microbatches=2), "--out", at / "run", ranks=2)
    assert "config.json" in good("checkpoint", at / "run", "--export", at / "out")
    good("checkpoint", at / "back", "--import", at / "out")
    return at


def test_weights_return_and_evaluate_to_the_same_loss(trained):
    want = summary(trained / "run")
    assert checkpoint.weights_sha256(trained / "back/checkpoints/step00000000") == want["weights_sha256"]
    found = json.loads(good("eval", trained / "run", "--json"))
    assert found["held_out_loss"] == pytest.approx(want["held_out_loss"], rel=1e-12) and (found["step"], found["samples"]) == (4, 10)
    text = trained / "corpus.txt"
    on_two = good("eval", trained / "back", "--set", f"data.source={text}", "--set", "plan.tp=2", "--samples", 10, "--json", ranks=2)
    assert json.loads(on_two)["held_out_loss"] == pytest.approx(want["held_out_loss"], rel=1e-12)


def test_a_run_starts_from_imported_weights(trained):
    """A start from the trained run is a --resume in the import's own folder: the same weights, nothing else of the run."""
    cfg = configuration(trained, **COMMON)
    good("train", cfg, "--out", trained / "one", "--set", f"train.start={trained / 'run'}")
    good("train", cfg, "--out", trained / "back", "--resume")
    one, two, before = (summary(trained / name) for name in ("one", "back", "run"))
    assert one["losses"] == two["losses"] and one["weights_sha256"] == two["weights_sha256"]
    assert len(one["losses"]) == 4 and one["losses"][0] < before["losses"][0]  # of the same samples, by weights that were trained
