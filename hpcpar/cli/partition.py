"""hpcpar partition PROFILE --ranks N: the stages and replicas with which the slowest one is as fast as can be (PipeDream's program)."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.layer_times import LayerTimes
    from hpcpar.plan.costs import Level
    from hpcpar.plan.cut import Partition


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("partition", help="cut a profiled model into stages with replicas, as fast as can be", description=__doc__)
    p.add_argument("profile", metavar="PROFILE", help="a file of `hpcpar profile`")
    p.add_argument("--ranks", type=int, required=True, metavar="N")
    p.add_argument("--bandwidth", type=float, metavar="B/S", help="bytes/s between two ranks (default: a copy in memory, as profiled)")
    p.add_argument("--levels", metavar="N@B/S,...", help="outermost first: 4@1e9,2@1e10 is 4 nodes joined at 1e9 bytes/s, of 2 ranks each")
    p.add_argument(
        "--memory", type=float, metavar="BYTES", help="the most a rank may hold: weights by version, gradients, optimizer, stash"
    )
    p.add_argument("--straight", action="store_true", help="no replicas: one rank a stage, for any schedule")
    p.add_argument("--json", action="store_true", help="print JSON")
    p.add_argument("--write", metavar="FILE.toml", help="write the profiled description with this plan, for `train`")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Partition and print; raises PlanError where nothing fits or `train` could not take it."""
    from hpcpar.layer_times import LayerTimes
    from hpcpar.plan import table
    from hpcpar.plan.costs import Layers
    from hpcpar.plan.partition import partition

    if args.ranks < 1:
        raise PlanError(f"--ranks {args.ranks}: use at least 1")
    if args.memory is not None and not 0 < args.memory < float("inf"):
        raise PlanError(f"--memory {args.memory}: write a number of bytes, such as 2e9")
    times = LayerTimes.read(args.profile)
    memory = None if args.memory is None else int(args.memory)
    found = partition(Layers.of(times), _levels(args, times), memory, args.straight)
    if args.json:
        print(json.dumps(table.report(found)))
    else:
        from rich.console import Console

        console = Console(highlight=False, markup=False)
        console.print(table.LEGEND)
        console.print(table.table(found))
        for line in table.lines(found):
            console.print(line)
        print("\n".join(table.plan_lines(found)))
    if args.write:
        _write(args, times, found)
    return 0


def _write(args: argparse.Namespace, times: LayerTimes, found: Partition) -> None:
    from hpcpar import config
    from hpcpar.plan.described import described
    from hpcpar.plan.predict import step_timing
    from hpcpar.schedule.generate import rule_of

    plan = described(times, found)
    try:
        config.save(plan, args.write)
    except OSError as e:
        raise PlanError(f"cannot write {args.write}: {e.strerror}") from None
    if rule_of(plan.plan.schedule) == "flush":
        timing = step_timing(times, plan, found.blocks)
        print(
            f"the clock of {plan.plan.schedule}: {1e3 * timing.makespan:.4g} ms a step, bubble {timing.bubble_total:.3f}", file=sys.stderr
        )
    print(f"mpirun -n {args.ranks} hpcpar train {args.write} --out DIR", file=sys.stderr)


def _levels(args: argparse.Namespace, times: LayerTimes) -> tuple[Level, ...]:
    from hpcpar.plan.costs import Level, parse_levels

    if args.levels and args.bandwidth is not None:
        raise PlanError(f"--levels {args.levels} has bandwidths of its own; leave out --bandwidth {args.bandwidth:g}")
    if args.levels:
        return parse_levels(args.levels, args.ranks)
    rate = times.machine.copy_bytes_per_s if args.bandwidth is None else args.bandwidth
    if not rate > 0:
        raise PlanError(f"--bandwidth {rate:g}: write bytes/s, such as 1e9")
    return (Level(args.ranks, rate),)
