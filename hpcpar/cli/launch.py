"""`hpcpar launch -- VERB ...`: start a verb on every rank of this job, with the launcher that makes one world of them."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from hpcpar.errors import PlanError


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser(
        "launch",
        help="inside a job: start a verb on every rank, with the launcher that fits the MPI library",
        description="Find the launcher that makes one world of the ranks here (srun with pmi2 or pmix, plain srun, the MPI library's own "
        "mpirun), say which, and become it: `hpcpar launch --ranks 8 -- train CONFIG --out DIR`. Each way is tried with two processes "
        "first, unless the site names its launch line.",
    )
    p.add_argument("--site", default="generic-cpu", help="a site, or a file of one (default: %(default)s)")
    p.add_argument("--ranks", type=int, metavar="N", help="ranks (default: SLURM_NTASKS of this job, else 1)")
    p.add_argument("--functions", action="store_true", help="print the path of the shell functions that scripts source, and end")
    p.add_argument("command", nargs=argparse.REMAINDER, metavar="-- VERB ...", help="the verb with its options")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Become the launcher; raises PlanError where none works."""
    from hpcpar.launch import site, start

    if args.functions:
        from importlib import resources

        print(resources.files("hpcpar.launch").joinpath("job.sh"))
        return 0
    verb = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not verb:
        raise PlanError("launch starts a verb; write it after --, as in: hpcpar launch --ranks 4 -- train CONFIG.toml --out DIR")
    ranks = args.ranks or int(os.environ.get("SLURM_NTASKS", "1"))
    if ranks < 1:
        raise PlanError(f"--ranks {ranks}: use at least 1")
    way = start.command(site.load(args.site), ranks, os.environ)
    line = [*way, sys.executable, "-m", "hpcpar", *verb]
    print(f"launch: {' '.join(way) or 'one process, no launcher'}", file=sys.stderr, flush=True)
    os.execvp(line[0], line)
