"""What Slurm says of jobs: those that wait or run, and for a while those that ended."""

from __future__ import annotations

import getpass
import subprocess
from dataclasses import dataclass
from shutil import which

SLURM_S = 60.0


@dataclass(frozen=True)
class Entry:
    """A job of the queue: Slurm's state, why it waits, how often it was started again."""

    state: str
    reason: str = ""
    restarts: int = 0


def queued() -> dict[str, Entry]:
    """This user's jobs in the queue, by id (17, or 17_2 for one of an array); {} without Slurm."""
    if which("squeue") is None:
        return {}
    try:
        said = _output("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i|%T|%r")
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = (line.split("|", 2) for line in said.splitlines() if line.count("|") >= 2)
    return {job.strip(): Entry(state.strip(), reason.strip()) for job, state, reason in rows}


def known(job: str) -> Entry | None:
    """What the controller remembers of a job, also of one that ended minutes ago; None where it has forgotten."""
    if which("scontrol") is None:
        return None
    try:
        said = _output("scontrol", "--oneliner", "show", "job", job)
    except (OSError, subprocess.TimeoutExpired):
        return None
    fields = dict(word.split("=", 1) for word in said.split() if "=" in word)
    if "JobState" not in fields:
        return None
    return Entry(fields["JobState"], f"exit {fields.get('ExitCode', '?')}", int(fields.get("Restarts", 0)))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=SLURM_S).stdout
