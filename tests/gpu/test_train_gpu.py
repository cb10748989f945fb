"""A training run on the GPU is the CPU's run in float64, alone and over two ranks that share the GPU, direct and staged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.comm import device
from hpcpar.measure import launcher_facts

TOLERANCE = 1e-11  # relative, after 3 steps of AdamW: the sums are the same but for their order

CONFIG = """
[model]
layers = 2
width = 24
heads = 2
context = 16
dropout = 0.1
[plan]
pp = {pp}
dp = {dp}
microbatches = 2
sync = {{bucket_mb = 0.01, first_bucket_mb = 0.002}}
[train]
steps = 3
batch = 8
precision = "float64"
learning_rate = 1e-3
eval_samples = 8
[data]
source = "{source}"
[run]
device = "{where}"
gpu_aware = "{aware}"
"""

LLAMA = ["model.norm=rms", "model.position=rotary", "model.mlp=swiglu", "model.bias=false", "model.kv_heads=1", "model.tied=false"]


def hpcpar(*words: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    launch = [str(launcher_facts.find()), "-n", str(ranks)] if ranks > 1 else []
    env = device.alone(os.environ) | launcher_facts.PERMIT
    return subprocess.run([*launch, sys.executable, "-m", "hpcpar", *words], env=env, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("style", ["gpt", "llama"])
@pytest.mark.parametrize(("pp", "dp", "aware"), [(1, 1, "auto"), (2, 1, "no"), (1, 2, "no"), (2, 1, "direct"), (1, 2, "direct")])
def test_same_run_on_both(tmp_path: Path, pp: int, dp: int, aware: str, style: str) -> None:
    same(tmp_path, pp, dp, aware, LLAMA if style == "llama" else [])


@pytest.mark.parametrize(("zero", "aware", "style"), [(1, "no", "llama"), (2, "direct", "gpt"), (3, "no", "gpt"), (3, "direct", "llama")])
def test_shards_on_both(tmp_path: Path, zero: int, aware: str, style: str) -> None:
    same(tmp_path, 1, 2, aware, [f"plan.zero={zero}", *(LLAMA if style == "llama" else [])])


def test_a_parameter_server_in_host_memory_is_the_same_for_both(tmp_path: Path) -> None:
    same(tmp_path, 1, 2, "no", ["plan.sync.mode=ssp"])


def same(tmp_path: Path, pp: int, dp: int, aware: str, settings: list[str]) -> None:
    """Run on the CPU and on the GPU, and compare losses, norms and weights."""
    if pp * dp > 1 and launcher_facts.find() is None:
        pytest.skip("no mpiexec")
    if aware == "direct":
        import cupy

        aware = "yes" if hasattr(cupy, "_state") else "auto"  # the stand-in's memory is host memory, whatever the MPI library says
    source = tmp_path / "text.txt"
    source.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    for where in ("cpu", "cuda"):
        text = CONFIG.format(pp=pp, dp=dp, source=source, where=where, aware=aware)
        (tmp_path / f"{where}.toml").write_text(text)
        sets = [w for s in settings for w in ("--set", s)]
        child = hpcpar("train", str(tmp_path / f"{where}.toml"), "--out", str(tmp_path / where), *sets, ranks=pp * dp)
        assert child.returncode == 0, child.stdout + child.stderr
    child = hpcpar("compare", str(tmp_path / "cpu"), str(tmp_path / "cuda"), "--json")
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert all(found[k] <= TOLERANCE for k in ("loss", "grad_norm", "weights")), found
