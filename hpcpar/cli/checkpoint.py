"""hpcpar checkpoint DIR: what checkpoints a run has, whether they are whole, and their weights to and from other programs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.checkpoint.listing import Listed


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("checkpoint", help="list and verify checkpoints; export to and import from safetensors", description=__doc__)
    p.add_argument("folder", type=Path, metavar="DIR", help="the folder of a run, or one checkpoint")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--verify", action="store_true", help="read every byte and compare checksums; exits with 1 on damage")
    what.add_argument(
        "--export", type=Path, metavar="F.safetensors|DIR", help="write the newest weights and config.json as Hugging Face's GPT-2 or Llama"
    )
    what.add_argument(
        "--import",
        type=Path,
        metavar="SRC",
        dest="source",
        help="make DIR from such weights: a folder with config.json, or a file beside it",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """List, verify, export or import; 1 where a file is damaged or cannot be written."""
    try:
        if args.source:
            return _say(args, _take_in(args))
        if args.export:
            return _say(args, _export(args))
    except OSError as e:
        print(f"hpcpar: {e}", file=sys.stderr)
        return 1
    return _list(args)


def _export(args: argparse.Namespace) -> dict[str, Any]:
    from hpcpar import checkpoint
    from hpcpar.checkpoint.exchange import export

    path, said = checkpoint.find(args.folder)
    for text in said:
        print(f"hpcpar: {text}", file=sys.stderr)
    file = export(checkpoint.open(path), args.export)
    return {"checkpoint": str(path), "file": str(file), "config": str(file.with_name("config.json")), "bytes": file.stat().st_size}


def _take_in(args: argparse.Namespace) -> dict[str, Any]:
    from hpcpar.checkpoint.exchange import take_in

    path = take_in(args.source, args.folder)
    return {"checkpoint": str(path), "config": str(args.folder / "config.toml"), "source": str(args.source)}


def _say(args: argparse.Namespace, found: dict[str, Any]) -> int:
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:10}  {value:,}" if isinstance(value, int) else f"{name:10}  {value}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from hpcpar.checkpoint.listing import listing

    found = listing(args.folder, args.verify)
    if not found:
        raise PlanError(f"{args.folder} holds no checkpoint; name one, or the folder of a run that has one")
    if args.json:
        print(json.dumps({"folder": str(args.folder), "verified": args.verify, "checkpoints": [c.report() for c in found]}, indent=2))
    else:
        _print(found, args.verify)
    return int(args.verify and any(c.problems for c in found))


def _print(found: list[Listed], verified: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from hpcpar.analyse.table import size

    table = Table("step", "bytes", "files", "plan", "state", box=box.SIMPLE_HEAD, pad_edge=False)
    for c in found:
        state = ("every byte as written" if verified else "complete") if not c.problems else "not complete"
        table.add_row(str(c.step), size(c.bytes), str(c.files), _words(c.config.get("plan", {})), state)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    for c in found:
        for problem in c.problems:
            console.print(problem)


def _words(plan: dict[str, Any]) -> str:
    """dp 2 x pp 2, 1f1b, zero 1."""
    if not plan:
        return ""
    cut = [f"{axis} {plan[axis]}" for axis in ("dp", "pp", "cp", "tp", "ep") if plan[axis] > 1]
    if plan["replicas"]:
        cut.append(f"replicas {plan['replicas']}")
    more = [plan["schedule"]] * (plan["pp"] > 1) + [f"zero {plan['zero']}"] * (plan["zero"] > 0)
    return ", ".join([" x ".join(cut) or "one rank", *more])
