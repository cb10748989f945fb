"""A whole run with offload: refused with the number, then the bits of the unlimited run, resumed too, and its copies analysed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launch import compare, configuration, hpcpar

KINDS = [w for k in ("parameters", "optimizer", "activations") for w in ("--set", f"plan.offload.{k}=true")]


def test_offload_from_the_refusal_to_the_analysis(tmp_path: Path) -> None:
    path = configuration(tmp_path, plan__microbatches=2, train__eval_every=2, run__checkpoint_every=2)
    free = hpcpar("train", path, "--out", tmp_path / "free")
    assert free.code == 0, free.err
    refused = hpcpar("train", path, "--out", tmp_path / "limited", *KINDS, "--set", "plan.offload.device_mb=0.01")
    assert refused.code == 2 and not (tmp_path / "limited").exists()
    (line,) = refused.said
    found = re.search(r"plan.offload.device_mb = 0.01, but the backward of blocks.3 of stage 0 needs ([\d.]+) MB", line)
    enough = re.search(r"use device_mb >= ([\d.]+)", line)
    assert found and enough and 0.01 < float(found[1]) <= float(enough[1]) < float(found[1]) + 0.011
    limited = [*KINDS, "--set", f"plan.offload.device_mb={enough[1]}"]
    whole = hpcpar("train", path, "--out", tmp_path / "whole", *limited)
    assert whole.code == 0 and "offload: " in whole.err, whole.err
    assert compare(tmp_path / "free", tmp_path / "whole")["weights"] == 0
    a, b = (json.loads((tmp_path / d / "summary.json").read_text()) for d in ("free", "whole"))
    assert a["held_out_loss"] == b["held_out_loss"] is not None and a["weights_sha256"] == b["weights_sha256"]

    done = hpcpar("analyse", tmp_path / "whole", "--json")
    report = json.loads(done.out)
    (row,) = report["overlap"]
    assert row["copy_s"] > 0 and 0 <= row["copy_hidden"] <= 1
    copied = {r["operation"]: r["bytes"] for r in report["volumes"]["operations"] if r["kind"] == "copy"}
    assert copied["to_device"] > copied["to_host"] > 0
    (held_at_most,) = report["memory"]
    assert float(found[1]) * 1e6 - 1e3 <= held_at_most["device"] <= float(enough[1]) * 1e6
    assert "copies" in hpcpar("analyse", tmp_path / "whole").out


@pytest.mark.long
def test_offloaded_runs_resume_to_the_same_bits(tmp_path: Path) -> None:
    limited = [*KINDS, "--set", "plan.offload.device_mb=0.5"]
    path = configuration(tmp_path, plan__microbatches=2, plan__dp=2, run__checkpoint_every=2, train__schedule="constant")
    for steps in (2, 4):
        words = [*limited, "--set", f"train.steps={steps}", *(["--resume"] if steps == 4 else [])]
        done = hpcpar("train", path, "--out", tmp_path / "pieces", *words, ranks=2)
        assert done.code == 0, done.err
    free = hpcpar("train", path, "--out", tmp_path / "free", ranks=2)
    assert free.code == 0, free.err
    assert compare(tmp_path / "free", tmp_path / "pieces")["weights"] == 0
