"""`hpcpar submit CONFIG.toml --site SITE --out DIR`: check a run, write its script, give it to Slurm."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.launch.script import Task
    from hpcpar.launch.submit import Planned


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser(
        "submit",
        help="check a run, write the script of its job, give it to Slurm",
        description="Check the plan as `train` does and against nodes and ranks a node, write DIR/job.sh, and give it to sbatch. With "
        "--sweep every combination is a run of its own in DIR, one element of a job array; those that cannot be are refused before.",
    )
    p.add_argument("config", type=Path, metavar="CONFIG.toml")
    p.add_argument("--site", default="generic-cpu", help="a cluster that hpcpar knows, or a file of TOML (default: %(default)s)")
    p.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/NAME of CONFIG)")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, as in plan.pp=4")
    p.add_argument("--sweep", action="append", default=[], metavar="KEY=A,B,...", help="a run for each value; several: each combination")
    p.add_argument("--nodes", type=int, metavar="N")
    p.add_argument("--ntasks-per-node", type=int, metavar="M", help="ranks a node")
    p.add_argument("--cpus-per-task", type=int, metavar="C", help="cores a rank")
    p.add_argument("--time", default="00:30:00", metavar="H:M:S", help="the limit of a job (default: %(default)s)")
    p.add_argument("--notice", type=int, default=120, metavar="S", help="seconds before the limit at which ranks save (%(default)s)")
    for option in ("account", "partition", "qos"):
        p.add_argument(f"--{option}", metavar="NAME", help=f"sbatch's --{option}")
    p.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="another option of sbatch, as in --sbatch=--exclusive")
    p.add_argument("--dry-run", action="store_true", help="print the script and the call of sbatch; write and submit nothing")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Check, write, submit; raises PlanError where no point can be, or a named size does not fit."""
    from hpcpar.launch import site, submit

    named = str(Path(args.site).resolve()) if args.site.endswith(".toml") else args.site
    given = [f"--{o}={value}" for o in ("account", "partition", "qos") if (value := getattr(args, o))]
    wish = submit.Wish(
        named, site.load(named), args.nodes, args.ntasks_per_node, args.cpus_per_task, args.time, args.notice, (*given, *args.sbatch)
    )
    good, bad = submit.planned(args.config, args.set, args.sweep, wish)
    folder = (args.out or Path("runs") / args.config.stem).absolute()
    if bad:
        for point, reason in bad:
            print(f"hpcpar: {' '.join(point)}: {reason}", file=sys.stderr)
        raise PlanError(f"{len(bad)} of {len(good) + len(bad)} points cannot be; nothing is queued")
    said = "Written by: hpcpar " + shlex.join(a for a in sys.argv[1:] if a != "--dry-run").replace("\n", " ")
    tasks, text = submit.prepare(good, wish, folder, Path.cwd(), said)
    if args.dry_run:
        print(text, end="")
        for command, _ in submit.commands(tasks, folder):
            print(f"# {shlex.join(command)}")
        _table(good, tasks)
        return 0
    ids = submit.submit(good, tasks, text, wish, folder)
    _table(good, tasks)
    print(f"job{'s' * (len(ids) > 1)} {' '.join(ids)}; hpcpar jobs {shlex.quote(str(folder))}", file=sys.stderr)
    print("\n".join(ids))
    return 0


def _table(points: list[Planned], tasks: list[Task]) -> None:
    """The points, their ranks and folders, on stderr."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("", "settings", "ranks", "nodes", "folder", box=box.SIMPLE_HEAD, pad_edge=False)
    for point, task in zip(points, tasks, strict=True):
        nodes = str(task.shape.nodes or "as Slurm places them")
        table.add_row(str(task.index), " ".join(point.point), str(task.shape.ranks), nodes, str(task.folder))
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(table)
