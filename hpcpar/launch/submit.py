"""A description onto a cluster: checked as `train` checks it, before anything waits in a queue; then a script, and sbatch.

    points of the sweep -> each described whole, checked, shaped -> folders, job.sh, submitted.json -> sbatch, once for each shape

Points of one shape are one job array; points of other shapes are arrays of their own of the same script, so that no node lies idle.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from hpcpar import config as configuration
from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.launch import queue, sweep
from hpcpar.launch.script import Task, script
from hpcpar.launch.shape import Shape, shape
from hpcpar.launch.site import Site
from hpcpar.run.program import checked

RECORD, SCRIPT, DESCRIPTION = "submitted.json", "job.sh", "submitted.toml"
SBATCH_S = 120.0


@dataclass(frozen=True)
class Wish:
    """What is asked for: the site by name and as read, sizes, minutes as Slurm writes them, options of sbatch, seconds of notice."""

    named: str
    site: Site
    nodes: int | None = None
    per_node: int | None = None
    cores: int | None = None
    time: str = "00:30:00"
    notice_s: int = 120
    sbatch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """One point that can be: its settings, its whole description, its shape."""

    point: sweep.Point
    config: Config
    shape: Shape


def planned(path: Path, settings: Sequence[str], sweeps: Sequence[str], wish: Wish) -> tuple[list[Planned], list[tuple[sweep.Point, str]]]:
    """The points that can be run, and those that cannot with the reason; raises PlanError for what is wrong with all of them."""
    check_options(wish)
    device = [f"run.device={wish.site.device}"] if wish.site.device != "cpu" else []
    good, bad = [], []
    for point in sweep.points(sweeps):
        config = configuration.load(path, [*device, *settings, *point])
        try:
            program, size = checked(config, config.plan.ranks)
            if config.plan.offload:
                from hpcpar.run import offload  # which loads MPI

                for rank in range(config.plan.ranks):
                    offload.placements(config, program, size, rank)
            check_source(config)
            good.append(Planned(point, config, shape(config, wish.site, wish.named, wish.nodes, wish.per_node)))
        except PlanError as e:
            if not sweeps:
                raise
            bad.append((point, str(e)))
    return good, bad


def check_source(config: Config) -> None:
    """Raise PlanError where the data is not there: a job that waited for hours would say it then."""
    source = config.data.source
    if source != "stdlib" and not Path(source).exists():
        raise PlanError(f"data.source = {source!r} is not there, seen from {Path.cwd()}; name a file or folder that the nodes see too")


def check_options(wish: Wish) -> None:
    """Raise PlanError where sbatch would refuse, or the notice is longer than the job."""
    for option in wish.site.needs:
        if not any(o.startswith((f"--{option}=", f"-{option[0].upper()}")) for o in wish.sbatch):
            raise PlanError(f"{wish.named} takes no job without --{option}; use --{option} NAME")
    if (seconds := seconds_of(wish.time)) <= wish.notice_s:
        raise PlanError(
            f"--time {wish.time} is {seconds} s, and ranks are told {wish.notice_s} s before its end; use more --time or less --notice"
        )


def seconds_of(text: str) -> int:
    """Seconds of a time as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; raises PlanError for another form."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        raise PlanError(f"--time {text}: expected minutes, H:M:S or D-H:M:S")
    numbers = [int(p) for p in parts]
    if dash:
        h, m, s = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        h, m, s = numbers
    else:
        h, (m, s) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + h) * 60 + m) * 60 + s


def prepare(points: Sequence[Planned], wish: Wish, folder: Path, here: Path, said: str) -> tuple[list[Task], str]:
    """The tasks and the text of the script; nothing is written."""
    single = len(points) == 1 and not points[0].point
    tasks = []
    for i, p in enumerate(points):
        at = folder if single else folder / sweep.name(p.point)
        tasks.append(Task(i, at, at / DESCRIPTION, p.shape))
    if len({t.folder for t in tasks}) < len(tasks):
        raise PlanError("two points of the sweep have one folder's name; use values that differ in more than punctuation")
    cores = wish.cores or wish.site.cores
    log = str(folder).replace("%", "%%") + ("/job-%j.log" if single else "/job-%A_%a.log")
    options = [
        f"--job-name={re.sub(r'[^A-Za-z0-9_.-]+', '-', folder.name) or 'hpcpar'}",
        *([] if len({t.shape for t in tasks}) > 1 else tasks[0].shape.options),
        *([f"--cpus-per-task={cores}"] if cores else []),
        f"--time={wish.time}",
        f"--signal=USR1@{wish.notice_s}",  # to the ranks, not to the script
        *wish.site.sbatch,
        *wish.sbatch,
    ]
    return tasks, script(wish.site, wish.named, tasks, options, Path(log), here, said)


def commands(tasks: Sequence[Task], folder: Path) -> list[tuple[list[str], list[Task]]]:
    """The calls of sbatch, one for each shape, and the tasks that each one starts."""
    out: list[tuple[list[str], list[Task]]] = []
    array = len(tasks) > 1 or tasks[0].folder != folder
    for one in dict.fromkeys(t.shape for t in tasks):
        mine = [t for t in tasks if t.shape == one]
        numbers = ["--array=" + ",".join(str(t.index) for t in mine)] if array else []
        several = one.options if len({t.shape for t in tasks}) > 1 else []
        out.append((["sbatch", "--parsable", *several, *numbers, str(folder / SCRIPT)], mine))
    return out


def submit(points: Sequence[Planned], tasks: Sequence[Task], text: str, wish: Wish, folder: Path) -> list[str]:
    """Write folders and script, and give them to sbatch; returns the ids. Raises PlanError where a job is there or sbatch refuses."""
    if which("sbatch") is None:
        raise PlanError("sbatch is not on PATH: this machine has no Slurm; use --dry-run for the script, or mpirun to train here")
    waiting = queue.queued()
    for task in tasks:
        if (before := record(task.folder)) and before.get("job") in waiting:
            raise PlanError(
                f"job {before['job']} of {task.folder} is still queued or running; wait for it, scancel it, or use another --out"
            )
    write(points, tasks, text, folder)
    ids: list[str] = []
    for command, mine in commands(tasks, folder):
        done = subprocess.run(command, capture_output=True, text=True, timeout=SBATCH_S)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no message"])[0].removeprefix("sbatch: error: ")
            so_far = f"; jobs {', '.join(ids)} are queued" if ids else ""
            raise PlanError(f"sbatch refused {folder / SCRIPT}: {said}{so_far}")
        job = done.stdout.strip().split(";")[0]
        ids.append(job)
        for task in mine:
            number = f"{job}_{task.index}" if any(c.startswith("--array=") for c in command) else job
            fields: dict[str, Any] = {"job": number, "site": wish.named, "time": time.time(), "ranks": task.shape.ranks}
            fields |= {"nodes": task.shape.nodes, "limit": wish.time, "settings": list(points[task.index].point)}
            (task.folder / RECORD).write_text(json.dumps(fields) + "\n")
    return ids


def write(points: Sequence[Planned], tasks: Sequence[Task], text: str, folder: Path) -> None:
    """Write the script and the whole description of each point; raises PlanError where the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for point, task in zip(points, tasks, strict=True):
            task.folder.mkdir(parents=True, exist_ok=True)
            configuration.save(point.config, task.config)
        (folder / SCRIPT).write_text(text)
    except OSError as e:
        raise PlanError(f"--out {folder} cannot be written: {e.strerror}; name a folder that can") from None


def record(folder: Path) -> dict[str, Any] | None:
    """What submitted.json of a folder says; None where there is none."""
    try:
        return json.loads((folder / RECORD).read_text())
    except (OSError, json.JSONDecodeError):
        return None
