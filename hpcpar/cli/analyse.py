"""`hpcpar analyse DIR...`: what the traces of runs say, as tables, JSON or a picture."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "analyse",
        help="step times, shares, bubbles, volumes and memory from the trace of a run; several runs are compared",
        description="Read the trace of each run folder and print what it says. A missing or damaged rank is named and left out.",
    )
    parser.add_argument("runs", nargs="+", metavar="DIR", help="folder that `hpcpar train --out` wrote")
    parser.add_argument("--json", action="store_true", help="print JSON: an object, or a list of them for several runs")
    parser.add_argument("--png", metavar="F", help="draw one step of one run as a timeline, a lane a rank")
    parser.add_argument("--step", type=int, metavar="N", help="the step of the picture (default: the middle one)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Analyse and print; raises PlanError if a folder holds no trace."""
    import hpcpar.trace
    from hpcpar.analyse.report import report
    from hpcpar.errors import PlanError

    if args.png and len(args.runs) > 1:
        raise PlanError(f"--png draws one run, {len(args.runs)} are given; call analyse for each of them")
    if args.step is not None and not args.png:
        raise PlanError("--step chooses the step of a picture; give --png F too")
    traces = [hpcpar.trace.open(folder) for folder in args.runs]
    reports = [report(trace) for trace in traces]
    if args.png:
        from hpcpar.analyse.steps import of_step, steps
        from hpcpar.draw.timeline import timeline

        trace = traces[0]
        step, first, last, lanes = of_step(trace, steps(trace), args.step)
        timeline(lanes, trace.ranks, first, last, f"{trace.folder.resolve().name}, step {step}", args.png)
        print(f"step {step} is drawn in {args.png}", file=sys.stderr)
    if args.json:
        print(json.dumps(reports if len(reports) > 1 else reports[0], indent=2, allow_nan=False))
    else:
        _print(reports)
    return 0


def _print(reports: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from hpcpar.analyse.table import compared, tables

    console = Console(highlight=False, markup=False)
    for part in tables(reports[0]) if len(reports) == 1 else compared(reports):
        console.print(part)
