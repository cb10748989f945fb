"""One run at a time in a folder, on file systems with and without flock; and what status.json says of a run."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys

import pytest

from hpcpar.errors import PlanError
from hpcpar.run import lock, status
from hpcpar.run.lock import Lock, holder
from hpcpar.run.status import Status

DEAD = {"host": socket.gethostname(), "pid": 4711, "job": None, "since": 0.0, "beat": 7}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(lock, "BEAT_S", 0.02)
    monkeypatch.setattr(lock, "WATCH_S", 1.0)  # fifty beats of a holder on a busy machine


@pytest.fixture(params=(True, False), ids=("flock", "no flock"))
def flock(request, monkeypatch):
    """A file system that has flock, or has not."""
    if not request.param:

        def refuse(*_):
            raise OSError(errno.ENOSYS, "not here")

        monkeypatch.setattr(lock.fcntl, "flock", refuse)
    return request.param


def stale(folder, **about):
    (folder / lock.NAME).write_text(json.dumps({**DEAD, **about}))


def test_the_second_is_refused_and_told_who(tmp_path, flock, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    first = Lock(tmp_path)
    said = rf"{tmp_path} is in use by process {os.getpid()} on {socket.gethostname()} \(job 42\) since \d{{4}}"
    for _ in range(2):
        with pytest.raises(PlanError, match=said):
            Lock(tmp_path)
    assert holder(tmp_path)["pid"] == os.getpid()
    first.release()
    assert not list(tmp_path.iterdir()) and holder(tmp_path) is None
    Lock(tmp_path).release()


@pytest.mark.parametrize("host", (DEAD["host"], "elsewhere"))
def test_a_dead_run_is_not_in_the_way(tmp_path, flock, host):
    stale(tmp_path, host=host)
    assert holder(tmp_path) is None
    held = Lock(tmp_path)
    assert holder(tmp_path)["pid"] == os.getpid()
    held.release()


def test_a_dead_run_of_this_host_is_known_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_still", lambda *_: pytest.fail("the beat was watched"))
    stale(tmp_path)
    Lock(tmp_path).release()


def test_a_file_cut_short_is_not_in_the_way(tmp_path, flock):
    (tmp_path / lock.NAME).write_text("")
    Lock(tmp_path).release()


def test_a_process_that_is_killed_leaves_the_folder(tmp_path):
    code = f"import time, pathlib, hpcpar.run.lock as l; l.Lock(pathlib.Path({str(tmp_path)!r})); print(1, flush=True); time.sleep(99)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.read(1)
    with pytest.raises(PlanError, match=f"process {child.pid}"):
        Lock(tmp_path)
    child.kill()
    child.wait()
    child.stdout.close()
    Lock(tmp_path).release()


def test_status_from_start_to_end(tmp_path):
    assert status.read(tmp_path) is None
    mine = Status(0, 2)
    mine.end("failed", 1, "before it had a folder")
    assert status.read(tmp_path) is None
    mine.take(tmp_path)
    mine.begin(3, 9)
    found = status.read(tmp_path)
    assert [found[k] for k in ("state", "step", "steps", "ranks", "code", "pid")] == ["running", 3, 9, 2, None, os.getpid()]
    mine.step(4)
    assert status.read(tmp_path)["step"] == 3  # seconds later
    mine.release()
    found = status.read(tmp_path)
    assert found["state"] == "lost" and "no process holds" in found["reason"]
    mine.end("requeue", 85, "SIGUSR1")
    found = status.read(tmp_path)
    assert [found[k] for k in ("state", "step", "code", "reason")] == ["requeue", 4, 85, "SIGUSR1"]


def test_status_of_a_folder_that_cannot_be_written(tmp_path, capsys):
    mine = Status(1, 2)
    mine.take(tmp_path / "gone")
    mine.end("failed", 1, "why")
    assert "status.json cannot be written: No such file" in capsys.readouterr().err
