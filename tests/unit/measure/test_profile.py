"""Profiles: what is measured, that it is what the layers take and hold, and that a damaged file is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcpar import config
from hpcpar.cli.main import main
from hpcpar.errors import PlanError
from hpcpar.layer_times import LayerTimes
from hpcpar.measure.profile import profile
from hpcpar.nn.describe import layers

SMALL = {
    "model": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 1024, "context": 32, "tied": False},
    "plan": {"microbatches": 2, "pp": 2},
    "train": {"batch": 8},
    "data": {},
    "run": {"threads": 1},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    return path


@pytest.fixture(scope="module")
def described(text: Path) -> config.Config:
    return config.build({**SMALL, "data": {"source": str(text)}})


@pytest.fixture(scope="module")
def times(described: config.Config) -> LayerTimes:
    return profile(described, 3)


def test_every_layer_of_the_model_is_there(times: LayerTimes, described: config.Config) -> None:
    assert [(x.name, x.kind) for x in times.layers] == [(x.name, x.kind) for x in layers(described.model)]
    assert times.samples == 4 and times.precision == "float32" and times.rounds == 3 and times.machine.threads == 1
    assert config.build(times.config) == described


def test_bytes_are_those_of_the_arrays(times: LayerTimes, described: config.Config) -> None:
    rows, d, v = 4 * 32, 32, 1024
    for x, layer in zip(times.layers, layers(described.model), strict=True):
        assert x.parameter_bytes == 4 * layer.size and x.optimizer_bytes == 2 * x.parameter_bytes  # Adam's two moments
        assert x.output_bytes == (0 if x.kind == "head" else 4 * rows * d)
    embedding, block, _, head = times.layers
    assert embedding.stash_bytes == 4 * rows  # the ids, int32
    # A row: x, norm1, qkv 3, attention, x + attention and norm2, each d wide; up and GELU 4 d each: 16 d, and statistics.
    assert block.stash_bytes == pytest.approx(4 * rows * 16 * d, rel=0.05)
    assert head.stash_bytes == pytest.approx(4 * rows * (v + 2 * d), rel=0.05)


def test_times_are_positive_and_the_costly_layer_is_costly(times: LayerTimes) -> None:
    for x in times.layers:
        assert min(x.F_s, x.I_s, x.W_s) > 0 and x.compute_s == x.F_s + x.I_s + x.W_s
    embedding, block, _, head = times.layers
    # The head's matrix is 32 x the embedding's rows and 2.7 times the block's four matrices: far from measurement noise.
    assert head.compute_s > 3 * embedding.compute_s
    assert head.F_s > block.F_s / 4


def test_recompute_moves_the_forward_into_the_backward(described: config.Config) -> None:
    again = config.build({**config.tables(described), "plan": {"microbatches": 2, "pp": 2, "recompute": "full"}})
    kept, found = profile(described, 5), profile(again, 5)
    assert found.layers[1].stash_bytes == found.layers[1].output_bytes < kept.layers[1].stash_bytes / 8


def test_a_profile_reads_back_as_it_was_written(times: LayerTimes, tmp_path: Path) -> None:
    times.write(tmp_path / "p")
    read = LayerTimes.read(tmp_path / "p")
    assert read.layers == times.layers and read.machine == times.machine and config.build(read.config) == config.build(times.config)
    read.write(tmp_path / "q")
    assert (tmp_path / "q").read_bytes() == (tmp_path / "p").read_bytes()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t["layers"][1].pop("I_s"), "damaged at layers[1]: object missing required field `I_s`"),
        (lambda t: t["layers"][0].update(F_s=-1.0), "damaged at layers[0].F_s"),
        (lambda t: t["layers"][0].update(F_s="fast"), "damaged at layers[0].F_s: expected `float`, got `str`"),
        (lambda t: t["layers"][0].update(F_s=float("nan")), "damaged at layers[0].F_s"),
        (lambda t: t["layers"][0].update(F_s=float("inf")), "which is no time"),
        (lambda t: t["layers"][2].update(flops=7), "damaged at layers[2]: object contains unknown field `flops`"),
        (lambda t: t["layers"].reverse(), "an embedding, blocks and a head, in this order"),
        (lambda t: t["layers"].pop(1), "holds 1 blocks, its config.model.layers says 2"),
        (lambda t: t.pop("machine"), "damaged at the file"),
        (lambda t: t.update(samples=0), "damaged at samples"),
        (lambda t: t.update(layers=[]), "damaged at layers"),
    ],
)
def test_a_damaged_profile_is_refused(change, why: str, times: LayerTimes, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import tomli_w

    tables = msgspec.to_builtins(times)
    tables["layers"] = list(tables["layers"])
    change(tables)
    path = tmp_path / "p"
    path.write_text(tomli_w.dumps(tables))
    with pytest.raises(PlanError) as e:
        LayerTimes.read(path)
    assert why in str(e.value) and str(path) in str(e.value) and "\n" not in str(e.value)


def test_no_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"No such file.*write one with `hpcpar profile`"):
        LayerTimes.read(tmp_path / "none")
    (tmp_path / "half").write_text("samples = ")
    with pytest.raises(PlanError, match="is not TOML"):
        LayerTimes.read(tmp_path / "half")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="is not TOML"):
        LayerTimes.read(tmp_path / "binary")


def test_the_command_writes_what_partition_reads(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described, out = config.build({**SMALL, "data": {"source": str(text)}}), tmp_path / "a.profile"
    config.save(described, tmp_path / "a.toml")
    assert main(["profile", str(tmp_path / "a.toml"), "--out", str(out), "--rounds", "2", "--set", "model.layers=3"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80 and "blocks.2" in printed
    assert main(["partition", str(out), "--ranks", "3", "--straight"]) == 0
    assert "plan.pp = 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rounds", "0"], "--rounds 0"),
        (["--set", "train.batch=7"], "train.batch = 7 cannot be cut"),
        (["--set", "model.heads=5"], "not a multiple of model.heads = 5"),
        (["--set", "plan.tp=2"], "plan.tp = 2"),
        (["--out", "/nowhere/p"], "cannot write the profile /nowhere/p"),
    ],
)
def test_refusals(arguments: list[str], why: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.save(config.build({**SMALL, "data": {"source": str(text)}}), tmp_path / "a.toml")
    assert main(["profile", str(tmp_path / "a.toml"), "--out", str(tmp_path / "p"), "--rounds", "1", *arguments]) == 2
    assert why in capsys.readouterr().err
