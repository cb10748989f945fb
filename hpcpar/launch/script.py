"""The script of a job, as text: what is asked of Slurm, the site's environment, what is done around a run, and the run of each point.

#SBATCH ...   ->   cd, modules, variables   ->   job.sh   ->   case $SLURM_ARRAY_TASK_ID   ->   run_job hpcpar launch -- train
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from hpcpar.launch.shape import Shape
from hpcpar.launch.site import Site


@dataclass(frozen=True)
class Task:
    """One run of a job: its number in the array, its folder, and the description that lies there."""

    index: int
    folder: Path
    config: Path
    shape: Shape


def functions() -> str:
    """job.sh: what a script does around its run."""
    return resources.files("hpcpar.launch").joinpath("job.sh").read_text()


def script(site: Site, named: str, tasks: Sequence[Task], options: Sequence[str], log: Path, here: Path, said: str) -> str:
    """The whole script; `options` are sbatch's, `log` may hold its patterns, `here` is where it starts, `said` what it says of itself."""
    header = [
        *options,
        f'--output="{log}"',
        "--open-mode=append",  # a requeued job goes on with its log
        "--requeue",
    ]
    cases = [
        f"  {t.index}) folder={shlex.quote(str(t.folder))} config={shlex.quote(str(t.config))} ranks={t.shape.ranks} ;;" for t in tasks
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {said}",
            *(f"#SBATCH {option}" for option in header),
            "",
            f"cd -- {shlex.quote(str(here))} || exit 1",
            *site.setup,
            *(f"export {name}={shlex.quote(value)}" for name, value in site.environment.items()),
            '[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun does not take it from sbatch',
            f"python={shlex.quote(sys.executable)}",
            "",
            functions(),
            'case "${SLURM_ARRAY_TASK_ID:-0}" in',
            *cases,
            "esac",
            f'run_job "$folder" "$python" -m hpcpar launch --site {shlex.quote(named)} --ranks "$ranks" -- '
            'train "$config" --out "$folder" --resume',
            "",
        ]
    )
