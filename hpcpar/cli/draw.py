"""hpcpar draw: a schedule by name or from a .csv file, checked, timed and drawn."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.schedule import Schedule, Times, Timing
    from hpcpar.schedule.lifetimes import Lifetimes


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("draw", help="draw a pipeline schedule, with its bubbles and peaks", description=__doc__)
    parser.add_argument("schedule", metavar="SCHEDULE", help="a name such as 1f1b or zb-v, or a .csv file with a line a rank")
    parser.add_argument("--stages", type=int, metavar="P", help="pipeline ranks; a .csv file knows its own")
    parser.add_argument(
        "--microbatches", type=int, metavar="M", help="microbatches of an update; minibatches from start to drain for pipedream"
    )
    parser.add_argument("--chunks", type=int, default=1, metavar="V", help="chunks a rank (interleaved)")
    parser.add_argument("--batches", type=int, default=4, metavar="N", help="updates from start to drain (pipedream-2bw)")
    parser.add_argument("--replicas", metavar="R,R,...", help="replicas a stage (pipedream), such as 3,2")
    parser.add_argument("--updates", choices=("lazy", "eager"), default="lazy", help="when an asynchronous update is made")
    parser.add_argument("--clip", action="store_true", help="updates wait for the gradient norm over all stages")
    parser.add_argument(
        "--times", default="", metavar="F=1,I=1,W=1,comm=0", help="times of a rank's share of one microbatch, and of a message"
    )
    parser.add_argument("--json", action="store_true", help="print lists, times and peaks as JSON")
    parser.add_argument("--svg", metavar="FILE", help="write the picture as SVG")
    parser.add_argument("--png", metavar="FILE", help="write the picture as PNG")
    parser.add_argument("--csv", metavar="FILE", help="write the schedule as text that can be edited and run")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Draw; raises PlanError where the schedule cannot be made or is wrong."""
    from hpcpar.draw import schedule_text
    from hpcpar.schedule import check, clock, lower, require_common_version
    from hpcpar.schedule.lifetimes import lifetimes
    from hpcpar.schedule.text import write

    times = parse_times(args.times)
    schedule = _schedule(args)
    require_common_version(args.schedule, clip=args.clip, tied=False)
    program = lower(schedule, clip=args.clip)
    check(program)
    timing, lives, steady = clock(program, times), lifetimes(schedule), _steady(args, times)
    if args.csv:
        try:
            write(schedule, args.csv)
        except OSError as e:
            raise PlanError(f"cannot write {args.csv}: {e.strerror}") from None
    for path, ending in ((args.svg, ".svg"), (args.png, ".png")):
        if path:
            from hpcpar.draw.schedule_picture import save

            if not path.endswith(ending):
                raise PlanError(f"{path} does not end in {ending}; rename it")
            save(timing, path)
    if args.json:
        json.dump(report(args, schedule, timing, lives, steady), sys.stdout)
        print()
    elif not (args.csv or args.svg or args.png):
        print(schedule_text.picture(timing))
        print(schedule_text.summary(timing, lives, steady))
    return 0


def report(args: argparse.Namespace, schedule: Schedule, timing: Timing, lives: list[Lifetimes], steady: float | None) -> dict[str, Any]:
    """What --json prints."""
    out = {
        "schedule": args.schedule,
        "stages": args.stages or len(schedule.ranks),
        "microbatches": args.microbatches or schedule.microbatches,
        "chunks": schedule.chunks,
        "actions": [[str(a) for a in actions] for actions in schedule.ranks],
        "makespan": timing.makespan,
        "cost": timing.cost,
        "work": timing.work,
        "bubble_total": timing.bubble_total,
        "bubble_ideal": timing.bubble_ideal,
        "peak_stash": [float(x.peak_stash) for x in lives],
        "peak_held": [float(x.peak_held) for x in lives],
        "weight_versions": [x.weight_versions for x in lives],
        "gradient_buffers": [x.gradient_buffers for x in lives],
    }
    return out if steady is None else {**out, "bubble_steady": steady}


def parse_times(text: str) -> Times:
    """Read F=1,I=1,W=1,comm=0 (also U and D); what is left out keeps its default. Raises PlanError for anything else."""
    from hpcpar.schedule import Times

    known = ("F", "I", "W", "comm", "U", "D")
    found: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if key.strip() not in known or not 0 <= number < float("inf"):
            raise PlanError(f"--times {item}: write a time that is not negative for one of {', '.join(known)}, as in F=1,I=1,W=1,comm=0")
        found[key.strip()] = number
    return Times(**found)  # type: ignore[arg-type]  # `slow` is not among the known


def _schedule(args: argparse.Namespace) -> Schedule:
    from hpcpar.schedule import generate
    from hpcpar.schedule.text import read

    if args.schedule.endswith(".csv"):
        schedule = read(args.schedule)
        if args.stages is None and args.microbatches is None:
            return schedule
        return generate(args.schedule, stages=args.stages or len(schedule.ranks), microbatches=args.microbatches or schedule.microbatches)
    if args.stages is None or args.microbatches is None:
        missing = "--stages" if args.stages is None else "--microbatches"
        raise PlanError(f"draw {args.schedule} needs {missing}; a .csv file alone knows its own")
    return generate(
        args.schedule,
        stages=args.stages,
        microbatches=args.microbatches,
        chunks=args.chunks,
        batches=args.batches,
        replicas=_replicas(args.replicas),
        updates=args.updates,
    )


def _replicas(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(r) for r in text.split(",")) if text else ()
    except ValueError:
        raise PlanError(f"--replicas {text}: write a number a stage, as in 3,2") from None


def _steady(args: argparse.Namespace, times: Times) -> float | None:
    """The bubble of the period of an asynchronous schedule; None for others and for lists from a file."""
    from hpcpar.schedule import flow
    from hpcpar.schedule.generate import rule_of
    from hpcpar.schedule.steady import bubble_steady

    if args.schedule.endswith(".csv") or rule_of(args.schedule) == "flush":
        return None
    period = flow(
        args.schedule,
        stages=args.stages,
        group=args.microbatches,
        first=0,
        last=1,
        replicas=_replicas(args.replicas),
        updates=args.updates,
    )
    return bubble_steady(period, times, clip=args.clip)
