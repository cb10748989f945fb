"""A disk that is full, a folder that is read-only, a checkpoint that is damaged: said clearly, and what was saved before is used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from launch import HERE, compare, configuration, hpcpar, metrics

from hpcpar import checkpoint

PROGRAM = (str(HERE / "faulty.py"),)
SETTINGS = {"plan__pp": 2, "train__steps": 6, "run__checkpoint_every": 2, "train__precision": "float64"}


@pytest.fixture
def mounted(tmp_path):
    """Mounts a small file system of its own; as root alone."""
    made = []

    def mount(options):
        place = tmp_path / f"disk{len(made)}"
        place.mkdir()
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
            pytest.skip("mounting a small file system needs root")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert hpcpar("train", configuration(folder, **SETTINGS), "--out", folder / "out", ranks=2).code == 0
    return folder / "out"


def ends_as(whole, out, cfg, *flags):
    """The run goes on from step 2, to the end of the whole one."""
    done = hpcpar("train", cfg, "--out", out, "--resume", *flags, ranks=2)
    assert done.code == 0, done.err
    assert "after step 2" in done.err
    apart = compare(whole, out)
    assert (apart["loss"], apart["grad_norm"], apart["weights"]) == (0, 0, 0), apart
    assert [x["step"] for x in metrics(out)] == [1, 2, 3, 4, 5, 6]
    return done


FULL = {  # fault, rank, settings, what is said
    "disk, saving": ("fill", 1, {"run__trace": "off"}, "No space left"),
    "disk, tracing": ("fill", 0, {}, "No space left"),
    "limit, saving": ("limit", 1, {"run__trace": "off"}, "File too large"),
    "limit, tracing": ("limit", 1, {}, "File too large"),
}


@pytest.mark.parametrize("fault, rank, settings, reason", FULL.values(), ids=FULL)
def test_a_full_disk(tmp_path, mounted, whole, fault, rank, settings, reason):
    """It is full from step 3 on; the checkpoint of step 2 is used when there is room again."""
    place = mounted("size=4m") if fault == "fill" else tmp_path
    cfg = configuration(tmp_path, **{**SETTINGS, **settings})
    done = hpcpar(fault, rank, 3, "train", cfg, "--out", place / "out", ranks=2, program=PROGRAM)
    assert done.code == 1, done.err
    assert reason in done.err and "Traceback" not in done.err, done.err
    if settings:
        assert "the checkpoint of step 4 could not be written" in done.err
        assert not list((place / "out" / "checkpoints").glob(".step*.tmp"))
    found = checkpoint.newest_intact(place / "out" / "checkpoints")
    assert found == (place / "out" / "checkpoints" / "step00000002", [])
    (place / "ballast").unlink(missing_ok=True)
    done = ends_as(whole, place / "out", cfg)
    assert json.loads((place / "out" / "status.json").read_text())["state"] == "ended"


def test_a_read_only_folder(tmp_path, mounted):
    place = mounted("ro,size=1m")
    for flags in ((), ("--resume",)):
        done = hpcpar("train", configuration(tmp_path, plan__pp=2), "--out", place / "out", *flags, ranks=2)
        assert (done.code, len(done.said)) == (2, 1), done.err
        assert "cannot be written: Read-only file system" in done.said[0]


def test_a_damaged_checkpoint(tmp_path, whole):
    """Each file of the newest one, cut short or with one bit flipped: the one before is used."""
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "checkpoints" / "step00000006")
    newest = out / "checkpoints" / "step00000004"
    files = sorted(newest.iterdir())
    assert len(files) == 3
    for file in files:
        intact = file.read_bytes()
        flipped = bytearray(intact)
        flipped[len(flipped) // 2] ^= 1
        for damaged in (intact[:-1], intact[: len(intact) // 2], b"", bytes(flipped)):
            file.write_bytes(damaged)
            path, said = checkpoint.newest_intact(out / "checkpoints")
            assert path == out / "checkpoints" / "step00000002" and file.name in said[0]
        file.unlink()
        assert checkpoint.newest_intact(out / "checkpoints")[0] == out / "checkpoints" / "step00000002"
        file.write_bytes(intact)
    files[-1].write_bytes(bytes(flipped))
    assert f"{files[-1].name} is damaged" in ends_as(whole, out, configuration(tmp_path, **SETTINGS)).err
    assert checkpoint.verify(newest) == []  # written again
