"""`hpcpar memory CONFIG.toml`: what each rank will hold, by kind, beside the formula of its plan; nothing is run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcpar.run.activations import InFlight
    from hpcpar.run.memory import Held


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("memory", help="bytes that each rank of a plan will hold, beside the formula", description=__doc__)
    p.add_argument("config", type=Path, metavar="CONFIG.toml")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, as in plan.zero=2")
    p.add_argument("--json", action="store_true", help="print a JSON list, an object for all ranks that hold the same")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Count and print; raises PlanError where the plan could not be run."""
    from hpcpar import config
    from hpcpar.run.memory import held

    found = held(config.load(args.config, args.set))
    if args.json:
        print(json.dumps([h.report() for h in found], indent=2))
    else:
        _print(found)
    return 0


def _print(found: list[Held]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from hpcpar.analyse.table import size

    console = Console(highlight=False, markup=False)
    for h in found:
        table = Table("", "held", "formula", box=box.SIMPLE_HEAD, pad_edge=False)
        for kind, count in h.kinds.items():
            table.add_row(kind, size(count), size(h.by_formula[kind]))
        kinds, named = sum(h.kinds.values()), sum(h.buffers.values())
        table.add_row("together", size(kinds), f"{size(sum(h.by_formula.values()))} = {h.formula}")
        for name, count in h.buffers.items():
            table.add_row(f"  {name}", size(count), "")
        table.add_row("with buffers", size(kinds + named), "")
        console.print(f"rank{'s' * (len(h.ranks) > 1)} {_ranges(h.ranks)}: stage {_ranges(h.stages)}, Ψ = {h.elements:,}, N = {h.owners}")
        console.print(table)
        if h.activations:
            _activations(console, h.activations)
        else:
            console.print("what microbatches in flight keep comes on top: with experts it is known by the routing alone")


def _activations(console: Any, of: InFlight) -> None:
    """What microbatches in flight keep, beside the closed form of a block."""
    from rich import box
    from rich.table import Table

    from hpcpar.analyse.table import size

    table = Table("activations", "kept", "formula", box=box.SIMPLE_HEAD, pad_edge=False)
    for item, count in of.blocks.items():
        table.add_row(f"  {item}", size(count), "")
    table.add_row("blocks", size(of.blocks.total()), f"{size(of.by_formula)} = {of.formula} a block and microbatch")
    for item, count in of.ends.items():
        table.add_row(f"  {item}", size(count), "")
    table.add_row("with embedding and head", size(of.blocks.total() + of.ends.total()), "")
    for item, count in of.held.items():
        table.add_row(f"  {item}, for W", size(count), "")
    if of.held:
        table.add_row("with what W needs", size(of.total), "")
    many = ", ".join(f"{n} of stage {s}" for s, n in of.microbatches.items())
    later = ", ".join(f"{n} of stage {s}" for s, n in of.waiting.items() if n)
    console.print(f"microbatches in flight: {many}" + f"; between I and W: {later}" * bool(later))
    console.print(table)


def _ranges(numbers: list[int]) -> str:
    """0-3, 5 for 0, 1, 2, 3, 5."""
    out: list[list[int]] = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in out)
