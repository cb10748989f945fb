"""What cannot be is refused in one line, once, with exit code 2, before step 1, and nothing is lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from launch import BIN, configuration, hpcpar, mpirun

from hpcpar.cli.main import main

# settings, ranks, what the line must say
REFUSED = {
    "unknown key": ({"plan__microbatch": 2}, 1, ["plan.microbatch", "plan.microbatches"]),
    "key of another table": ({"model__pp": 2}, 1, ["model.pp", "plan.pp"]),
    "wrong type": ({"plan__pp": "two"}, 1, ["plan.pp", "int"]),
    "negative": ({"model__layers": -1}, 1, ["model.layers"]),
    "fewer layers than stages": ({"plan__pp": 4, "model__layers": 3}, 4, ["layers = 3", "4 stages", "pp"]),
    "ranks": ({"plan__pp": 2}, 3, ["2 ranks", "3", "mpirun -n 2"]),
    "batch": ({"plan__microbatches": 3}, 1, ["train.batch = 8", "3", "6 or 9"]),
    "heads": ({"model__heads": 3}, 1, ["width = 16", "heads = 3"]),
    "key/value heads": ({"model__heads": 4, "model__kv_heads": 3}, 1, ["kv_heads = 3"]),
    "schedule": ({"plan__schedule": "1b1f"}, 1, ["1b1f", "1f1b"]),
    "stages sum": ({"plan__pp": 2, "plan__stages": [1, 2]}, 2, ["[1, 2]", "3 of layers = 4"]),
    "stages count": ({"plan__pp": 2, "plan__stages": [4]}, 2, ["1 entries", "2 stages"]),
    "short corpus": ({"model__context": 7000}, 1, ["6000 tokens", "7000"]),
    "no corpus": ({"data__source": "/nowhere/at-all.txt"}, 1, ["/nowhere/at-all.txt"]),
    "vocabulary": ({"model__vocabulary": 100}, 1, ["100", "256"]),
    "sharded gradients in a pipeline": ({"plan__pp": 2, "plan__zero": 2}, 2, ["plan.zero = 2", "plan.pp = 2", "zero = 1"]),
    "asp and stages": ({"plan__pp": 2, "plan__sync": {"mode": "asp"}}, 2, ["asp", "pp = 2", "whole model"]),
    "ssp and versions": ({"plan__schedule": "pipedream-2bw", "plan__sync": {"mode": "ssp"}}, 1, ["ssp", "pipedream-2bw"]),
    "ssp and zero": ({"plan__zero": 1, "plan__dp": 2, "plan__sync": {"mode": "ssp"}}, 2, ["zero = 1"]),
    "asp and offload": ({"plan__offload": {}, "plan__sync": {"mode": "asp"}}, 1, ["offload"]),
    "asp and compression": ({"plan__sync": {"mode": "asp", "compress": "top-k"}}, 1, ["top-k"]),
    "asp and an algorithm": ({"plan__sync": {"mode": "asp", "algorithm": "ring"}}, 1, ["ring"]),
    "staleness without ssp": ({"plan__sync": {"mode": "asp", "staleness": 2}}, 1, ["staleness = 2", "ssp"]),
    "more ranks than positions": ({"plan__cp": 3, "model__context": 2}, 3, ["model.context = 2", "plan.cp = 3", "plan.cp <= 2"]),
    "more ranks than heads": ({"plan__cp": 3, "plan__context": "ulysses"}, 3, ["model.heads = 2", "plan.cp = 3", "zig-zag"]),
    "emulated cut samples": ({"plan__cp": 2, "train__emulate": {"F": 0.01}}, 2, ["train.emulate", "plan.cp = 2", "plan.cp = 1"]),
    "more ranks than heads to cut a layer": ({"plan__tp": 4}, 4, ["heads = 2", "plan.tp = 4", "plan.tp <= 2"]),
    "key/value heads over ranks": ({"plan__tp": 3, "model__heads": 8, "model__kv_heads": 2}, 3, ["kv_heads = 2", "tp = 3", "<= 2 or 4"]),
    "inner width over ranks": ({"plan__tp": 2, "model__mlp_width": 1}, 2, ["mlp_width = 1", "plan.tp = 2"]),
    "sequence alone": ({"plan__sequence": True}, 1, ["plan.sequence", "plan.tp = 1"]),
    "emulated exchanges": ({"plan__tp": 2, "train__emulate": {"F": 0.1}}, 2, ["emulate", "plan.tp = 2"]),
    "replicas without a drain": ({"plan__schedule": "pipedream", "train__check_replicas": 1}, 1, ["check_replicas = 1", "pipedream"]),
    "no GPU": ({"run__device": "cuda"}, 1, ["cuda"]),
}


@pytest.mark.parametrize("settings, ranks, words", REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(tmp_path, settings, ranks, words):
    done = hpcpar("train", configuration(tmp_path, **settings), "--out", tmp_path / "out", ranks=ranks)
    assert done.code == 2, done.err
    assert len(done.said) == 1, done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.said[0]
    assert done.out == ""
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


HERE = {"ranks", "short corpus", "vocabulary", "no GPU"}  # what only the nodes know


@pytest.mark.parametrize(
    "settings, ranks, words", [v for k, v in REFUSED.items() if k not in HERE], ids=[k for k in REFUSED if k not in HERE]
)
def test_submit_refuses_what_train_refuses(tmp_path, capsys, settings, ranks, words):
    """Before anything waits in a queue, without MPI."""
    arguments = ["submit", str(configuration(tmp_path, **settings)), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def test_refused_once_by_many_ranks(tmp_path):
    done = hpcpar("train", configuration(tmp_path, plan__pp=4, plan__nonsense=1), "--out", tmp_path / "out", ranks=4)
    assert (done.code, len(done.said)) == (2, 1), done.err


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = hpcpar("train", configuration(tmp_path, plan__pp=2), "--out", tmp_path / "file" / "out", ranks=2)
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert "cannot be written" in done.said[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_folder(tmp_path):
    (tmp_path / "out").mkdir(mode=0o555)
    done = hpcpar("train", configuration(tmp_path), "--out", tmp_path / "out")
    assert (done.code, len(done.said)) == (2, 1), done.err


def test_another_run_is_not_overwritten(tmp_path):
    cfg = configuration(tmp_path)
    assert hpcpar("train", cfg, "--out", tmp_path / "out").code == 0
    before = {p: p.read_bytes() for p in sorted((tmp_path / "out").rglob("*")) if p.is_file()}
    done = hpcpar("train", cfg, "--out", tmp_path / "out")
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert "--resume" in done.said[0]
    assert before == {p: p.read_bytes() for p in sorted((tmp_path / "out").rglob("*")) if p.is_file()}


def test_launcher_of_another_library(tmp_path):
    """Processes that each see a world of 1, as the wrong mpirun starts them."""
    cfg = configuration(tmp_path, plan__pp=2)
    wrong = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    done = hpcpar("train", cfg, "--out", tmp_path / "out", **wrong)
    assert (done.code, len(done.said)) == (2, 1), done.err
    assert "each sees a world of 1" in done.said[0]
    done = hpcpar("train", cfg, "--out", tmp_path / "out", **{**wrong, "OMPI_COMM_WORLD_RANK": "1"})
    assert (done.code, done.said) == (2, [])


def test_no_such_configuration(tmp_path):
    done = hpcpar("train", tmp_path / "missing.toml", "--out", tmp_path / "out")
    assert (done.code, len(done.said)) == (2, 1)


def test_interpreter_and_launcher_belong_together():
    """The tests run with the launcher beside the interpreter, if there is one."""
    beside = BIN / "mpirun"
    assert Path(mpirun()) == beside or not beside.exists()
    assert Path(sys.executable).parent == BIN
