"""hpcpar profile CONFIG.toml --out FILE: what each layer costs on this machine, for `partition` and for emulated runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcpar.layer_times import LayerTimes


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("profile", help="measure F, I, W and the bytes of each layer, in one process", description=__doc__)
    p.add_argument("config", type=Path, metavar="CONFIG.toml")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, as in model.layers=8")
    p.add_argument("--out", type=Path, required=True, metavar="FILE", help="the profile, TOML")
    p.add_argument("--rounds", type=int, default=9, metavar="N", help="microbatches, of which the median counts (default: %(default)s)")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; raises PlanError where the run could not be or the file cannot be written."""
    from hpcpar import config
    from hpcpar.measure.profile import profile

    times = profile(config.load(args.config, args.set), args.rounds)
    times.write(args.out)
    _print(times)
    print(f"written to {args.out}", file=sys.stderr)
    return 0


def _print(times: LayerTimes) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for name in ("layer", "F ms", "I ms", "W ms", "output MB", "stash MB", "weights MB", "optimizer MB"):
        table.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    for x in times.layers:
        seconds = [f"{1e3 * t:.3f}" for t in (x.F_s, x.I_s, x.W_s)]
        table.add_row(x.name, *seconds, *(f"{b / 1e6:.3f}" for b in (x.output_bytes, x.stash_bytes, x.parameter_bytes, x.optimizer_bytes)))
    console = Console(highlight=False, markup=False)
    console.print(
        f"a microbatch of {times.samples} samples, {times.precision}, {times.machine.threads} threads on {times.machine.device}, "
        f"median of {times.rounds}"
    )
    console.print(table)
