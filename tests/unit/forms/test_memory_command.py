"""`hpcpar memory`: without MPI, for every plan of a run, in JSON and in words."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hpcpar.cli.main import main
from hpcpar.config import build
from hpcpar.run.memory import held

MODEL = {"layers": 3, "width": 16, "heads": 2, "context": 8}
PSI = 256 * 16 + 8 * 16 + 3 * (12 * 16 * 16 + 13 * 16) + 2 * 16  # tokens, positions, blocks, norm
ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"mpi4py", "cupy"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from hpcpar.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def described(tmp_path):
    """A configuration file."""
    path = tmp_path / "run.toml"
    path.write_text("[model]\n" + "".join(f"{k} = {v}\n" for k, v in MODEL.items()) + "[train]\nbatch = 24\n")
    return path


def test_it_runs_without_mpi(described):
    sets = ["--set", "plan.dp=3", "--set", "plan.zero=3"]
    command = [sys.executable, "-c", ALONE, "memory", str(described), "--json", *sets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert sorted(r for row in rows for r in row["ranks"]) == [0, 1, 2]
    assert all((row["parameters"], row["replicas"], row["formula"]) == (PSI, 3, "16Ψ/N") for row in rows)
    for kind, bytes_each in (("parameters", 4), ("gradients", 4), ("optimizer", 8)):
        assert sum(row["bytes"][kind] * len(row["ranks"]) for row in rows) == bytes_each * PSI
    block, tokens = 12 * 16 * 16 + 13 * 16, 256 * 16
    for row in rows:
        assert row["buffers"]["gathered weights"] == 2 * 4 * block
        assert row["buffers"]["tied weight"] == row["buffers"]["tied gradient"] == 4 * tokens
        assert row["buffers"]["gradient buckets"] == 2 * 4 * tokens  # the tied weight is the largest
        assert row["total_bytes"] == sum(row["bytes"].values()) + sum(row["buffers"].values())


def test_in_words(described, capsys):
    assert main(["memory", str(described), "--set", "plan.dp=2", "--set", "plan.pp=2", "--set", "plan.zero=1"]) == 0
    said = capsys.readouterr().out
    for words in ("ranks 0-1: stage 0", "ranks 2-3: stage 1", "N = 2", "8Ψ + 8Ψ/N", "optimizer"):
        assert words in said


def test_a_plan_that_could_not_run_is_refused(described, capsys):
    assert main(["memory", str(described), "--set", "plan.pp=2", "--set", "plan.zero=3"]) == 2
    assert "plan.zero = 3" in capsys.readouterr().err


def test_versions_and_states_multiply():
    def of(**plan):
        optimizer = plan.pop("optimizer", "adamw")
        return held(build({"model": {**MODEL, "tied": False}, "plan": plan, "train": {"batch": 24, "optimizer": optimizer}}))

    (alone,) = of()
    psi = alone.elements
    assert alone.kinds == {"parameters": 4 * psi, "gradients": 4 * psi, "optimizer": 8 * psi} and not alone.buffers
    (sgd,) = of(optimizer="sgd", dp=2, zero=1)
    assert sgd.kinds["optimizer"] == 4 * psi // 2 and sgd.formula == "8Ψ + 4Ψ/N"
    first, last = of(schedule="pipedream-2bw", microbatches=2, pp=2, dp=2, zero=1)  # two versions on the first stage, two sums on both
    assert (first.stages, first.formula, last.formula) == ([0], "16Ψ + 8Ψ/N", "12Ψ + 8Ψ/N")
    assert first.kinds["parameters"] == 2 * 4 * first.elements and last.kinds["parameters"] == 4 * last.elements


@pytest.mark.parametrize(
    ("sequence", "recompute", "widths"), [(False, "none", 4 + 12 / 2), (True, "none", 16 / 2), (False, "full", 1), (True, "full", 1 / 2)]
)
def test_activations_beside_the_closed_form(described, capsys, sequence, recompute, widths):
    """e s b h (4 + 12 / t) a block, times the microbatches in flight on each rank."""
    sets = {"pp": 3, "tp": 2, "microbatches": 4, "sequence": str(sequence).lower(), "recompute": recompute}
    words = [w for k, v in sets.items() for w in ("--set", f"plan.{k}={v}")]
    assert main(["memory", str(described), "--json", *words]) == 0
    rows = [r for r in json.loads(capsys.readouterr().out) if 0 in r["ranks"] or 2 in r["ranks"] or 4 in r["ranks"]]
    n, plane = 6 * 8, 6 * 8 * 16 * 4  # 6 samples of 8 positions, width 16, float32
    for stage, (row, flight) in enumerate(zip(rows, (3, 2, 1), strict=True)):
        found = row["activations"]
        assert found["microbatches"] == {str(stage): flight}
        assert found["formula_bytes"] == flight * plane * widths
        beside = 0 if recompute == "full" else found["blocks"]["log-sum-exp"] + found["blocks"]["norm statistics"]
        assert sum(found["blocks"].values()) - beside == found["formula_bytes"]
        assert beside == (0 if recompute == "full" else flight * 4 * (n * 1 + 4 * n // (2 if sequence else 1)))
        assert found["total_bytes"] == sum(found["blocks"].values()) + sum(found["ends"].values())
    assert main(["memory", str(described), *words]) == 0
    said = capsys.readouterr().out
    assert "microbatches in flight: 3 of stage 0" in said and ("MLP" in said) == (recompute == "none")


def test_activations_of_cut_samples_and_chunks(described, capsys):
    """Ranks of a ring with unequal pieces are told apart; a rank with two chunks has both in flight."""
    assert main(["memory", str(described), "--json", "--set", "plan.cp=3", "--set", "plan.context=ring"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["ranks"] for r in rows] == [[0, 1], [2]]  # 3, 3 and 2 of 8 positions
    assert rows[0]["activations"]["total_bytes"] * 2 == rows[1]["activations"]["total_bytes"] * 3
    assert rows[0]["activations"]["formula"] == "e·(s/3)·b·h·(4 + 12/1)"
    sets = ("plan.pp=2", "plan.chunks=2", "plan.schedule=interleaved", "plan.microbatches=4", "model.layers=4")
    assert main(["memory", str(described), "--json", *(w for s in sets for w in ("--set", s))]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["activations"]["microbatches"] == {"0": 4, "2": 1}  # 2 (p - r - 1) + (v - 1) p before the first backward, and one
    assert second["activations"]["microbatches"] == {"1": 2, "3": 1}
