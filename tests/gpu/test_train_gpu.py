"""A training run on the GPU is the CPU's run in float64, alone and over two ranks that share the GPU, direct and staged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from math import prod
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
context = 15
dropout = 0.1
[plan]
pp = {pp}
dp = {dp}
cp = {cp}
tp = {tp}
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
EXPERTS = ["model.moe.experts=4", "model.moe.k=2", "model.moe.gate=gshard", "model.moe.capacity.factor=1.0", "model.moe.every=2"]
STYLES = {"gpt": [], "llama": LLAMA, "experts": EXPERTS}


def hpcpar(*words: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    launch = [str(launcher_facts.find()), "-n", str(ranks)] if ranks > 1 else []
    env = device.alone(os.environ) | launcher_facts.PERMIT
    return subprocess.run([*launch, sys.executable, "-m", "hpcpar", *words], env=env, capture_output=True, text=True, timeout=280)


LONG = partial(pytest.param, marks=pytest.mark.long)
PLANS = ((1, 1, "auto"), (2, 1, "no"), (1, 2, "no"), (2, 1, "direct"), (1, 2, "direct"))


@pytest.mark.parametrize(
    ("pp", "dp", "aware", "style"),
    [  # every style on one rank, each plan with one of them; the others are long
        pytest.param(*plan, style, marks=[pytest.mark.long] if i and (i + j) % len(STYLES) else [])
        for i, plan in enumerate(PLANS)
        for j, style in enumerate(STYLES)
    ],
)
def test_same_run_on_both(tmp_path: Path, pp: int, dp: int, aware: str, style: str) -> None:
    same(tmp_path, aware, styled(style), pp=pp, dp=dp)


@pytest.mark.parametrize(
    ("zero", "aware", "style"), [(1, "no", "llama"), (3, "direct", "gpt"), LONG(2, "direct", "gpt"), LONG(3, "no", "llama")]
)
def test_shards_on_both(tmp_path: Path, zero: int, aware: str, style: str) -> None:
    same(tmp_path, aware, [f"plan.zero={zero}", *styled(style)], dp=2)


@pytest.mark.parametrize(("zero", "aware"), [(0, "no"), (1, "direct"), LONG(0, "direct")])
def test_experts_over_ranks_on_both(tmp_path: Path, zero: int, aware: str) -> None:
    same(tmp_path, aware, ["plan.ep=2", f"plan.zero={zero}", *EXPERTS], dp=2)


def test_a_parameter_server_in_host_memory_is_the_same_for_both(tmp_path: Path) -> None:
    same(tmp_path, "no", ["plan.sync.mode=ssp"], dp=2)


@pytest.mark.parametrize(
    ("form", "aware", "style"),
    [("zig-zag", "no", "gpt"), ("ulysses", "direct", "llama"), LONG("ring", "direct", "llama"), LONG("gather", "direct", "gpt")],
)
def test_cut_samples_on_both(tmp_path: Path, form: str, aware: str, style: str) -> None:
    same(tmp_path, aware, [f"plan.context={form}", *styled(style)], cp=2)


@pytest.mark.parametrize(
    ("sequence", "aware", "style"),
    [
        ("false", "no", "gpt"),
        ("true", "direct", "gpt"),
        ("true", "no", "llama"),
        *[
            pytest.param(*other, marks=pytest.mark.long)
            for other in (
                ("false", "no", "llama"),
                ("false", "direct", "gpt"),
                ("false", "direct", "llama"),
                ("true", "no", "gpt"),
                ("true", "direct", "llama"),
            )
        ],
    ],
)
def test_cut_layers_on_both(tmp_path: Path, sequence: str, aware: str, style: str) -> None:
    same(tmp_path, aware, [f"plan.sequence={sequence}", *styled(style)], tp=2)


def test_cut_layers_of_cut_samples_on_both(tmp_path: Path) -> None:
    same(tmp_path, "direct", ["plan.sequence=true", "plan.zero=1", *styled("llama")], tp=2, cp=2)


@pytest.mark.parametrize(
    ("plan", "aware", "sequence"),
    [({"tp": 2}, "no", "true"), LONG({"tp": 2}, "direct", "false"), ({"cp": 2}, "direct", "false"), LONG({"tp": 2, "cp": 2}, "no", "true")],
    ids=["sequence", "tp", "cp", "both"],
)
def test_cut_experts_on_both(tmp_path: Path, plan: dict[str, int], aware: str, sequence: str) -> None:
    same(tmp_path, aware, [f"plan.sequence={sequence}", "model.moe.dropout=0.1", "model.moe.shared=1", *styled("experts")], **plan)


def styled(style: str) -> list[str]:
    """The settings of a model style."""
    return STYLES[style]


def same(tmp_path: Path, aware: str, settings: list[str], **plan: int) -> None:
    """Run on the CPU and on the GPU, and compare losses, norms and weights."""
    plan = {"pp": 1, "dp": 1, "cp": 1, "tp": 1} | plan
    ranks = prod(plan.values())
    if ranks > 1 and launcher_facts.find() is None:
        pytest.skip("no mpiexec")
    if aware == "direct":
        import cupy

        aware = "yes" if hasattr(cupy, "_state") else "auto"  # the stand-in's memory is host memory, whatever the MPI library says
    source = tmp_path / "text.txt"
    source.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    for where in ("cpu", "cuda"):
        text = CONFIG.format(source=source, where=where, aware=aware, **plan)
        (tmp_path / f"{where}.toml").write_text(text)
        sets = [w for s in settings for w in ("--set", s)]
        child = hpcpar("train", str(tmp_path / f"{where}.toml"), "--out", str(tmp_path / where), *sets, ranks=ranks)
        assert child.returncode == 0, child.stdout + child.stderr
    child = hpcpar("compare", str(tmp_path / "cpu"), str(tmp_path / "cuda"), "--json")
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert all(found[k] <= TOLERANCE for k in ("loss", "grad_norm", "weights")), found
