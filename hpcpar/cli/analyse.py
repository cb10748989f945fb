"""`hpcpar analyse DIR...`: what the traces of runs say, as tables, JSON or a picture."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpar.cli.pictures import PICTURES

if TYPE_CHECKING:
    from hpcpar.trace import Trace

EXPORTS = (
    ("perfetto", "F", "write one run for ui.perfetto.dev: .pftrace (native), .json or .json.gz (Chrome)"),
    ("otf2", "DIR", "write one run as an OTF2 archive, for Vampir"),
    ("events", "F", "write the events of one run as a table: .csv or .parquet"),
)


def add(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "analyse",
        help="step times, shares, bubbles, efficiencies, volumes and memory from the trace of a run; several runs are compared",
        description="Read the trace of each run folder and print what it says. A missing or damaged rank is named and left out.",
    )
    parser.add_argument("runs", nargs="+", metavar="DIR", help="folder that `hpcpar train --out` wrote")
    parser.add_argument("--json", action="store_true", help="print JSON: an object, or a list of them for several runs")
    parser.add_argument("--detail", action="store_true", help="print longer lists, bandwidths and memory over time too")
    parser.add_argument("--peak", type=float, metavar="GFLOPS", help="GFLOP/s that one rank's device can do: the MFU is against that")
    parser.add_argument("--baseline", metavar="DIR", help="the run that others are compared with (default: the fewest ranks)")
    parser.add_argument("--png", metavar="F", help="draw a picture; the file's ending, .png or .svg, names its format")
    parser.add_argument("--picture", metavar="NAME", choices=PICTURES, help=f"which: {', '.join(PICTURES)} (default: timeline)")
    parser.add_argument("--html", metavar="F", help="write one page that opens without a network: diagnosis, timeline that zooms, tables")
    parser.add_argument("--step", metavar="N", help="the step of a timeline, or N:M for several (default: the middle one)")
    for option, metavar, text in EXPORTS:
        parser.add_argument(f"--{option}", metavar=metavar, help=text)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Analyse and print; raises PlanError if a folder holds no trace."""
    import hpcpar.trace
    from hpcpar.analyse.report import report
    from hpcpar.analyse.scaling import scaling
    from hpcpar.errors import PlanError

    wanted = {option: path for option, *_ in EXPORTS if (path := getattr(args, option))}
    if wanted and len(args.runs) > 1:
        raise PlanError(f"--{next(iter(wanted))} writes one run, {len(args.runs)} are given; call analyse for each of them")
    if args.html and len(args.runs) > 1:
        raise PlanError(f"--html shows one run, {len(args.runs)} are given; call analyse for each of them")
    if args.step is not None and not (args.png or args.html):
        raise PlanError("--step says what a picture or a page shows; give --png F or --html F too")
    if args.picture is not None and not args.png:
        raise PlanError("--picture says what a picture shows; give --png F too")
    if args.peak is not None and not 0 < args.peak < float("inf"):
        raise PlanError(f"--peak {args.peak:g}: a device does more than 0 GFLOP/s; give what its data sheet says")
    baseline = _baseline(args)
    traces = [hpcpar.trace.open(folder) for folder in args.runs]
    for option, path in wanted.items():
        from hpcpar.draw.exports.export import EXPORTS as writers

        print(writers[option](traces[0], path), file=sys.stderr)
    reports = [report(trace, args.peak and args.peak * 1e9) for trace in traces]
    if len(reports) > 1:
        for one, row in zip(reports, scaling(reports, baseline), strict=True):
            one["scaling"] = row
    if args.png:
        print(f"{PICTURES[args.picture or 'timeline'](traces, args.step, args.png)} is drawn in {args.png}", file=sys.stderr)
    if args.html:
        _page(traces[0], reports[0], args.html, args.step)
        print(f"the page is {args.html}", file=sys.stderr)
    if args.json:
        print(json.dumps(reports if len(reports) > 1 else reports[0], indent=2, allow_nan=False))
    else:
        _print(reports, args.detail, baseline)
    return 0


def _page(trace: Trace, report: dict[str, Any], path: str, chosen: str | None) -> None:
    """Write the page of a run, which begins at a step, the middle one without a number."""
    from hpcpar.analyse.steps import chosen_steps, steps
    from hpcpar.analyse.table import plan_line
    from hpcpar.draw import page

    found = steps(trace)
    shown = chosen_steps(trace, found, chosen) if chosen is not None or len(found.numbers) else None
    windows = list(zip(found.numbers.tolist(), found.first.tolist(), found.last.tolist(), strict=True))
    lanes = {rank: trace.events(rank) for rank in trace.present}
    page.save(path, report, trace.description, plan_line(report), lanes, windows, shown)


def _baseline(args: argparse.Namespace) -> int | None:
    """The number of the baseline among the runs, which it joins as the first where it is none of them; None if none is named."""
    if args.baseline is None:
        return None
    same = [i for i, folder in enumerate(args.runs) if Path(folder).resolve() == Path(args.baseline).resolve()]
    if not same:
        args.runs.insert(0, args.baseline)
    return same[0] if same else 0


def _print(reports: list[dict[str, Any]], detail: bool, baseline: int | None) -> None:
    from rich.console import Console

    from hpcpar.analyse.table import compared, tables

    console = Console(highlight=False, markup=False)
    for part in tables(reports[0], detail) if len(reports) == 1 else compared(reports, baseline):
        console.print(part)
