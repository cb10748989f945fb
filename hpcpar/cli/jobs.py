"""`hpcpar jobs [DIR]`: the runs under a folder, with state, last step and the reason of the end."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser(
        "jobs",
        help="runs under a folder: state, last step, reason of the end",
        description="List every run under DIR: from Slurm's queue while its job is there, else from what the run wrote.",
    )
    p.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="(default: %(default)s)")
    p.add_argument("--json", action="store_true", help="print a JSON list")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """List; raises PlanError where there is no such folder."""
    from hpcpar.launch import jobs

    if not args.folder.is_dir():
        raise PlanError(f"{args.folder} is no folder; name one that holds runs")
    rows = jobs.found(args.folder)
    if args.json:
        print(json.dumps([r.report() for r in rows], indent=2))
        return 0
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "job", "state", "step", "loss", "why", box=box.SIMPLE_HEAD, pad_edge=False)
    for r in rows:
        loss = "" if r.loss is None else f"{r.loss:.4f}"
        table.add_row(r.folder, r.job or "", r.state, f"{r.step}/{r.steps or '?'}", loss, r.reason)
    console = Console(highlight=False, markup=False)
    console.print(table if rows else f"no run under {args.folder}")
    return 0
