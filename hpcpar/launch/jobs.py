"""The runs under a folder and what became of each: from Slurm's queue where the job is there, else from what the run wrote.

queued | running | requeued     Slurm says so
ended | failed | stopped        status.json says so: done; the failure; a signal, saved
cancelled | timeout | …         Slurm still remembers the end of a job that wrote none
lost                            neither: it was killed, or its machine stopped
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcpar.launch import queue
from hpcpar.launch.submit import record

WORDS = {"PENDING": "queued", "CONFIGURING": "queued", "REQUEUED": "requeued", "COMPLETED": "ended"}
ENDS = {"ended": "ended", "failed": "failed", "requeue": "stopped"}
SKIPPED = {"checkpoints"}


@dataclass(frozen=True)
class Found:
    """One run: its folder, job, state, last step of how many, the loss there, and the reason of the end or of the waiting."""

    folder: str
    job: str | None
    state: str
    step: int
    steps: int | None
    loss: float | None
    reason: str

    def report(self) -> dict[str, Any]:
        """What `hpcpar jobs --json` prints."""
        return asdict(self)


def runs(top: Path) -> Iterator[Path]:
    """The folders of runs under `top`, itself included, in order of their names."""
    if any((top / name).exists() for name in ("submitted.json", "status.json", "metrics.jsonl")):
        yield top
    try:
        inner = sorted(p for p in top.iterdir() if p.is_dir() and not p.is_symlink() and p.name not in SKIPPED and p.name[0] != ".")
    except OSError:
        return
    for folder in inner:
        yield from runs(folder)


def found(top: Path) -> list[Found]:
    """Every run under `top`."""
    waiting = queue.queued()
    return [_found(folder, top, waiting) for folder in runs(top)]


def _found(folder: Path, top: Path, waiting: dict[str, queue.Entry]) -> Found:
    status, last = read(folder / "status.json") or {}, last_line(folder / "metrics.jsonl")
    job = (record(folder) or {}).get("job") or status.get("job")
    state, reason = _state(job, status, folder, waiting)
    step = max(last.get("step", 0), status.get("step") or 0)
    where = str(folder) if folder == top else str(folder.relative_to(top))
    return Found(where, job, state, step, status.get("steps") or _steps(folder), last.get("loss"), reason)


def _state(job: str | None, status: dict[str, Any], folder: Path, waiting: dict[str, queue.Entry]) -> tuple[str, str]:
    said = status.get("reason", "")
    if job in waiting:
        entry = waiting[job]
        if entry.state == "PENDING" and status:
            return "requeued", said or entry.reason
        why = entry.reason if entry.state == "PENDING" and entry.reason != "None" else ""
        return WORDS.get(entry.state, "running"), why
    if status.get("state") in ENDS:
        return ENDS[status["state"]], said
    if (folder / "summary.json").exists() and not status:
        return "ended", "done"
    past = queue.known(job) if job else None
    if past and past.state not in ("PENDING", "RUNNING"):
        return WORDS.get(past.state, past.state.lower().replace("_", " ")), f"{past.reason}; see its log"
    if job is None and status.get("state") == "running":
        return "running", ""
    return "lost", "it wrote no end: killed, or its machine stopped; see its log"


def read(path: Path) -> dict[str, Any] | None:
    """A JSON object of a file; None where there is none."""
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl, without reading all of it; {} where there is none."""
    try:
        with path.open("rb") as f:
            f.seek(0, 2)
            f.seek(max(0, f.tell() - 8192))
            lines = f.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def _steps(folder: Path) -> int | None:
    """train.steps of the description in a folder."""
    import tomllib

    for name in ("config.toml", "submitted.toml"):
        try:
            return tomllib.loads((folder / name).read_text()).get("train", {}).get("steps")
        except (OSError, tomllib.TOMLDecodeError):
            continue
    return None
