"""hpcpar checkpoint: the list, the verdict, the exit code; no run is needed for it."""

import json

import pytest
from checkpoint_samples import write
from test_checkpoint_damage import flip
from test_checkpoint_exchange import MODELS, saved

from hpcpar import checkpoint, config
from hpcpar.cli.main import main

CONFIG = config.tables(config.build({"plan": {"dp": 2, "pp": 2, "zero": 1}}))


@pytest.fixture
def run(tmp_path):
    """Two checkpoints of a run, and one that was never finished."""
    for step in (3, 12):
        write(tmp_path / "checkpoints", step, config=CONFIG)
    (tmp_path / "checkpoints/.step00000013.tmp").mkdir()
    (tmp_path / "checkpoints/.step00000013.tmp/part00000.bin").write_bytes(b"12345")
    return tmp_path


def listed(capsys, *arguments):
    """The exit code and the JSON object."""
    code = main(["checkpoint", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)["checkpoints"]


def test_the_list(run, capsys):
    code, found = listed(capsys, run)
    assert code == 0 and [(c["step"], c["complete"]) for c in found] == [(12, True), (3, True), (13, False)]
    first, folder = found[0], run / "checkpoints/step00000012"
    assert first["path"] == str(folder) and first["files"] == 4
    assert first["bytes"] == sum(f.stat().st_size for f in folder.iterdir())
    assert (first["plan"]["dp"], first["plan"]["pp"], first["plan"]["zero"], first["optimizer"]) == (2, 2, 1, "adamw")
    assert "never finished" in found[2]["problems"][0] and found[2]["bytes"] == 5
    assert listed(capsys, folder) == (0, [first])
    assert main(["checkpoint", str(run)]) == 0
    said = capsys.readouterr().out
    assert "dp 2 x pp 2, 1f1b, zero 1" in said and ".step00000013.tmp was never finished" in said


def test_damage_is_found_where_every_byte_is_read(run, capsys):
    file = run / "checkpoints/step00000003/part00001.bin"
    (run / "checkpoints/.step00000013.tmp/part00000.bin").unlink()
    (run / "checkpoints/.step00000013.tmp").rmdir()
    assert listed(capsys, run, "--verify")[0] == 0
    flip(file, 70)
    assert [c["complete"] for c in listed(capsys, run)[1]] == [True, True]
    code, found = listed(capsys, run, "--verify")
    assert code == 1 and [c["complete"] for c in found] == [True, False] and str(file) in found[1]["problems"][0]
    assert main(["checkpoint", str(file.parent), "--verify"]) == 1
    assert str(file) in capsys.readouterr().out
    assert main(["checkpoint", str(run / "checkpoints/step00000012"), "--verify"]) == 0


@pytest.mark.parametrize("name", ("part00000.bin", "manifest.json"))
def test_a_file_that_is_cut_short_or_gone_is_named(run, capsys, name):
    file = run / "checkpoints/step00000012" / name
    capsys.readouterr()
    for spoil in (lambda: file.write_bytes(file.read_bytes()[:-1]), file.unlink):
        spoil()
        code, found = listed(capsys, run)
        assert code == 0 and not found[0]["complete"] and str(file) in found[0]["problems"][0] and found[1]["complete"]
        assert listed(capsys, run, "--verify")[0] == 1


def test_a_folder_without_checkpoints_is_refused(tmp_path, capsys):
    for where in (tmp_path, tmp_path / "nothing"):
        assert main(["checkpoint", str(where)]) == 2
        assert "holds no checkpoint" in capsys.readouterr().err
        assert main(["checkpoint", str(where), "--export", str(tmp_path / "out")]) == 2
        assert "holds no complete checkpoint" in capsys.readouterr().err


def test_export_takes_the_newest_that_is_whole(tmp_path, capsys):
    """A damaged newer one is named, and left out; a damaged one that is asked for is refused."""
    old = saved(tmp_path / "run", MODELS["llama"])
    new = old.parent / "step00000009"
    tmp = checkpoint.prepare(old.parent, 9)
    commit = checkpoint.open(old)
    held = [
        ("weights", n, commit.shape("weights", n), [slice(None)] * len(commit.shape("weights", n)), commit.read("weights", n) + 1)
        for n in commit.names("weights")
    ]
    checkpoint.commit(tmp, [checkpoint.write_part(tmp, 0, held)], **commit.fields)
    flip(new / "part00000.bin", 200)
    code = main(["checkpoint", str(tmp_path / "run"), "--export", str(tmp_path / "out"), "--json"])
    told = capsys.readouterr()
    assert code == 0 and json.loads(told.out)["checkpoint"] == str(old) and "step00000009/part00000.bin" in told.err
    assert main(["checkpoint", str(new), "--export", str(tmp_path / "two")]) == 2 and "is damaged" in capsys.readouterr().err
    assert main(["checkpoint", str(tmp_path / "back"), "--import", str(tmp_path / "out")]) == 0
    assert checkpoint.weights_sha256(tmp_path / "back/checkpoints/step00000000") == checkpoint.weights_sha256(old)


def test_a_folder_that_cannot_be_written_fails(tmp_path, capsys):
    saved(tmp_path / "run", MODELS["gpt2"])
    (tmp_path / "file").write_text("no folder")
    assert main(["checkpoint", str(tmp_path / "run"), "--export", str(tmp_path / "file/out")]) == 1
    assert "Not a directory" in capsys.readouterr().err
