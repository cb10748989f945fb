"""Whole runs with mixtures of experts: what the trace says of the routing, resuming bit for bit, text from a checkpoint."""

from __future__ import annotations

import json
import shutil

import numpy as np
from launch import compare, configuration, hpcpar, metrics

from hpcpar import trace

EXPERTS = {
    "model__moe": {"experts": 4, "gate": "sigmoid-bias", "every": 2, "bias_rate": 0.01, "balance": 0.01, "capacity": {"factor": 1.0}},
    "model__norm": "rms",
    "train__precision": "float64",
    "train__steps": 6,
    "run__checkpoint_every": 3,
}


def train(folder, out, *flags, ranks=1, **more):
    done = hpcpar("train", configuration(folder, **{**EXPERTS, **more}), "--out", folder / out, *flags, ranks=ranks)
    assert done.code == 0, done.err


def routing(folder, rank, block, step):
    """{name: value} of one block's routing at a step, of a rank's trace."""
    rows = trace.open(folder).metrics(rank)
    start = f"moe.{block}.".encode()
    return {
        r["name"].decode().removeprefix(start.decode()): float(r["value"])
        for r in rows
        if r["step"] == step and r["name"].startswith(start)
    }


def test_the_trace_counts_tokens_and_a_run_resumes_bit_for_bit(tmp_path):
    train(tmp_path, "whole")
    train(tmp_path, "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step00000006")
    train(tmp_path, "parts", "--resume")
    found = compare(tmp_path / "whole", tmp_path / "parts")
    assert (found["loss"], found["grad_norm"], found["weights"]) == (0, 0, 0)
    assert [x["auxiliary"] for x in metrics(tmp_path / "whole")] == [x["auxiliary"] for x in metrics(tmp_path / "parts")]
    train(tmp_path, "two", ranks=2, plan__dp=2)
    for step in (1, 6):
        for block in (1, 3):
            one = routing(tmp_path / "whole", 0, block, step)
            ranks = [routing(tmp_path / "two", r, block, step) for r in range(2)]
            assert one["routed"] == 8 * 16 and one["causal"] == 1
            assert sum(one[f"tokens.{e}"] for e in range(4)) + one["dropped"] == 2 * one["routed"]
            wanted = [one[f"wanted.{e}"] for e in range(4)]  # a sample of 16 tokens leaves an expert 8 places
            assert sum(wanted) == 2 * one["routed"] and all(one[f"tokens.{e}"] <= wanted[e] for e in range(4))
            assert one["dropped"] == sum(wanted) - sum(one[f"tokens.{e}"] for e in range(4)) > 0
            assert 0 < one["entropy"] <= np.log(4) and 0 <= one["unrouted"] <= one["dropped"]
            for name in one:
                if name not in ("entropy", "causal"):
                    assert abs(sum(r[name] for r in ranks) - one[name]) < 1e-9, name
        assert routing(tmp_path / "whole", 0, 0, step) == {}
    assert not routing(tmp_path / "whole", 0, 1, 7)
    done = hpcpar("sample", tmp_path / "whole", "--prompt", "abc")
    assert done.code == 0 and done.out.startswith("abc"), done.err
    line = metrics(tmp_path / "whole")[0]
    shares = [routing(tmp_path / "whole", 0, b, 1) for b in (1, 3)]
    assert abs(line["auxiliary"] - sum(s["balance"] + s["z"] for s in shares)) < 1e-15 < line["auxiliary"]


def test_cut_experts_resume_in_one_piece_and_speak(tmp_path):
    """Two ranks that hold two of four experts each; one goes on with all of them, evaluates alike, and writes text."""
    train(tmp_path, "cut", ranks=2, plan__dp=2, plan__ep=2, train__check_replicas=2)
    shutil.copytree(tmp_path / "cut", tmp_path / "one")
    shutil.rmtree(tmp_path / "one" / "checkpoints" / "step00000006")
    train(tmp_path, "one", "--resume")
    found = compare(tmp_path / "cut", tmp_path / "one")
    assert max(found["loss"], found["grad_norm"], found["weights"]) <= 1e-12, found
    held = [json.loads((tmp_path / out / "summary.json").read_text())["held_out_loss"] for out in ("cut", "one")]
    assert abs(held[0] - held[1]) <= 1e-12 * held[1]
    done = hpcpar("sample", tmp_path / "cut", "--prompt", "abc", "--tokens", 3)
    assert done.code == 0 and done.out.startswith("abc"), done.err
    said = hpcpar("analyse", tmp_path / "cut", "--json")
    assert said.code == 0, said.err
    rows = {(r["operation"], r["axis"]): r["bytes"] for r in json.loads(said.out)["volumes"]["operations"]}
    assert rows["dispatch", "ep"] == rows["combine", "ep"] > 0 and rows["counts", "ep"] == 6 * 2 * 2 * 4 * 8
