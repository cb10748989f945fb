"""Damage, crashes and full disks: found, named, and the checkpoints before stay as they were."""

import errno
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from checkpoint_samples import write

from hpcpar import checkpoint
from hpcpar.checkpoint import CheckpointError
from hpcpar.errors import PlanError


def flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 0x10
    file.write_bytes(raw)


@pytest.mark.parametrize("part", range(3))
def test_a_flipped_byte_is_found(tmp_path, part):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    file = path / f"part{part:05d}.bin"
    flip(file, file.stat().st_size // 2)
    assert len(checkpoint.verify(path)) == 1 and str(file) in checkpoint.verify(path)[0]
    with pytest.raises(CheckpointError, match=file.name):
        checkpoint.open_intact(path)
    found, said = checkpoint.newest_intact(tmp_path)
    assert found == tmp_path / "step00000001" and str(file) in said[0] and len(said) == 1
    assert issubclass(CheckpointError, PlanError)


def test_a_flipped_byte_of_the_manifest_is_found(tmp_path):
    path = write(tmp_path, 2)
    file = path / "manifest.json"
    for at in range(0, file.stat().st_size, 23):
        flip(file, at)
        assert checkpoint.newest(tmp_path) is None, at
        assert str(file) in checkpoint.verify(path)[0]
        flip(file, at)
    assert checkpoint.newest(tmp_path) == path


def test_a_truncated_or_missing_part_is_named(tmp_path):
    old = write(tmp_path, 1)
    path = write(tmp_path, 2)
    found = checkpoint.open(path)
    file = path / "part00001.bin"
    raw = file.read_bytes()
    file.write_bytes(raw[:-1])
    for read in (checkpoint.open, checkpoint.open_intact, checkpoint.read_weights, checkpoint.weights_sha256):
        with pytest.raises(CheckpointError, match=f"part00001.bin has {len(raw) - 1} bytes, the manifest says {len(raw)}"):
            read(path)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"part00001\.bin"):
        found.read("weights", "a")  # opened before the damage
    file.unlink()
    with pytest.raises(CheckpointError, match=r"part00001\.bin.*No such file"):
        checkpoint.open(path)
    assert checkpoint.newest(tmp_path) == old
    assert checkpoint.newest_intact(tmp_path)[0] == old


def test_a_crash_between_parts_and_commit_leaves_the_old_newest(tmp_path):
    old = write(tmp_path, 1)
    tmp = checkpoint.prepare(tmp_path, 2)
    checkpoint.write_part(tmp, 0, [("weights", "a", (1,), (slice(0, 1),), np.zeros(1))])
    assert checkpoint.newest(tmp_path) == old
    assert checkpoint.newest_intact(tmp_path) == (old, [])
    again = checkpoint.prepare(tmp_path, 2)
    assert again == tmp and not list(again.iterdir())
    checkpoint.discard(again)
    assert [p.name for p in tmp_path.iterdir()] == ["step00000001"]


def test_a_part_that_is_not_there_is_not_committed(tmp_path):
    tmp = checkpoint.prepare(tmp_path, 2)
    entries = [checkpoint.write_part(tmp, r, [("weights", "ab"[r], (1,), (slice(0, 1),), np.zeros(1))]) for r in range(2)]
    file = tmp / "part00001.bin"
    raw = file.read_bytes()
    file.write_bytes(raw[:-1])
    with pytest.raises(OSError, match="7 bytes, 8 were written"):
        checkpoint.commit(tmp, entries)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        checkpoint.commit(tmp, entries)
    assert checkpoint.newest(tmp_path) is None


def test_a_full_disk_leaves_the_checkpoints_before(tmp_path):
    """A child with a limit on the size of files writes a part that is larger: EFBIG stands in for ENOSPC."""
    old = write(tmp_path, 1)
    code = """
import sys, numpy as np, resource
from hpcpar import checkpoint
tmp = checkpoint.prepare(sys.argv[1], 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
try:
    checkpoint.write_part(tmp, 0, [("weights", "a", (5000,), (slice(0, 5000),), np.zeros(5000))])
except OSError as e:
    print(e.errno)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(errno.EFBIG), done.stderr
    assert checkpoint.newest(tmp_path) == old and checkpoint.verify(old) == []


def test_a_read_only_folder_is_an_os_error():
    """In a child, which gives up root's right to write everywhere after its imports."""
    code = """
import os, sys
from hpcpar import checkpoint
if os.geteuid() == 0:
    os.seteuid(65534)
print(checkpoint.newest(sys.argv[1]).name)
try:
    checkpoint.prepare(sys.argv[1], 2)
except PermissionError as e:
    print(e.filename)
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = write(folder, 1)
        folder.chmod(0o555)
        try:
            done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=60)
        finally:
            folder.chmod(0o755)
        assert done.stdout.split() == ["step00000001", str(folder / ".step00000002.tmp")], done.stderr
        assert checkpoint.newest(folder) == old and checkpoint.verify(old) == []


def test_kill_while_writing_leaves_the_checkpoints_before(tmp_path):
    """SIGKILL at a random place of a run that writes one checkpoint after the other: the newest is always intact."""
    code = """
import sys, numpy as np
from hpcpar import checkpoint
for step in range(1, 100000):
    tmp = checkpoint.prepare(sys.argv[1], step)
    entry = checkpoint.write_part(tmp, 0, [("weights", "a", (100000,), (slice(0, 100000),), np.full(100000, step))])
    checkpoint.commit(tmp, [entry])
    checkpoint.prune(sys.argv[1], 2)
    print(step, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        for _ in range(5):
            said = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        said = (child.stdout.read().split() or [said])[-1]
    found = checkpoint.newest(tmp_path)
    assert checkpoint.verify(found) == []
    step = checkpoint.open(found).step
    assert step >= int(said) and checkpoint.open(found).read("weights", "a")[-1] == step
