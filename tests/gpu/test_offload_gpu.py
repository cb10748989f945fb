"""Offload on the GPU: the bits of the unlimited run on the GPU, with copies on a stream of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_train_gpu import CONFIG, hpcpar

from hpcpar.measure import launcher_facts

KINDS = ("parameters", "optimizer", "activations")


@pytest.mark.parametrize(
    ("pp", "dp", "kinds"), [(1, 1, KINDS), (1, 1, ("activations",)), (1, 1, ("parameters",)), (2, 1, KINDS), (1, 2, KINDS)]
)
def test_the_bits_of_the_unlimited_run(tmp_path: Path, pp: int, dp: int, kinds: tuple[str, ...]) -> None:
    if pp * dp > 1 and launcher_facts.find() is None:
        pytest.skip("no mpiexec")
    source = tmp_path / "text.txt"
    source.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (tmp_path / "run.toml").write_text(CONFIG.format(pp=pp, dp=dp, cp=1, tp=1, source=source, where="cuda", aware="no"))
    sets = [w for k in kinds for w in ("--set", f"plan.offload.{k}=true")]

    def train(name: str, *more: str) -> tuple[int, str]:
        child = hpcpar(
            "train", str(tmp_path / "run.toml"), "--out", str(tmp_path / name), *more, "--set", "train.eval_every=2", ranks=pp * dp
        )
        return child.returncode, child.stdout + child.stderr

    code, said = train("free")
    assert code == 0, said
    code, said = train("refused", *sets, "--set", "plan.offload.device_mb=0.01")
    found = re.search(r"device_mb >= ([\d.]+)", said)
    assert code == 2 and found, said
    code, said = train("limited", *sets, "--set", f"plan.offload.device_mb={found[1]}")
    assert code == 0, said
    child = hpcpar("compare", str(tmp_path / "free"), str(tmp_path / "limited"), "--json")
    assert child.returncode == 0, child.stderr
    apart = json.loads(child.stdout)
    assert all(apart[k] == 0 for k in ("loss", "grad_norm", "weights")), apart
    child = hpcpar("analyse", str(tmp_path / "limited"), "--json")
    report = json.loads(child.stdout)
    assert all(row["copy_s"] > 0 and 0 <= row["copy_hidden"] <= 1 for row in report["overlap"]), report["overlap"]
