"""The manner of every script here: run folders in, a finding, a table and a picture out.

    python analysis/X.py RUN RUN ... [--png F]                         of runs that are there
    python analysis/X.py --make [--out DIR] [--steps N] [--png F]      of runs that are made now, under mpirun

A script is a module with the five functions of Script; analysis/figures.py calls them for every figure of docs/figures.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcpar.errors import PlanError


class Script(Protocol):
    """What a figure is made of."""

    STEPS: int  # of each run that it makes

    def make(self, folder: Path, steps: int) -> list[Path]:
        """Run what the figure is about, a folder each."""

    def rows(self, folders: Sequence[Path]) -> list[dict[str, Any]]:
        """What the traces of runs say; raises PlanError for runs that the figure is not about."""

    def finding(self, rows: Sequence[dict[str, Any]]) -> str:
        """One sentence, from the numbers."""

    def table(self, rows: Sequence[dict[str, Any]]) -> str:
        """The rows in Markdown."""

    def picture(self, rows: Sequence[dict[str, Any]], path: Path) -> None:
        """Draw the rows; the file's ending, .png or .svg, names its format."""


def main(script: Any) -> list[dict[str, Any]]:
    """The command line of a script; returns the rows that were printed."""
    parser = argparse.ArgumentParser(description=script.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--make", action="store_true", help="make the runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the runs that are made here")
    parser.add_argument("--steps", type=int, metavar="N", default=script.STEPS, help="of each run that is made (default %(default)s)")
    parser.add_argument("--png", type=Path, metavar="F", help="draw the picture, .png or .svg")
    args = parser.parse_args()
    if not args.runs and not args.make:
        parser.error("name folders of runs, or let --make make some")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            made = script.make(args.out or Path(scratch), args.steps) if args.make else []
            rows = script.rows([*args.runs, *made])
        print(script.finding(rows), script.table(rows), sep="\n\n")
        if args.png:
            script.picture(rows, args.png)
    except PlanError as e:
        parser.exit(2, f"{Path(script.__file__).stem}: {e}\n")
    return rows


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first `words` columns are words, to the left, and the others numbers, to the right."""
    rule = [":---" if i < words else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def number(value: float | None, form: str, factor: float = 1.0) -> str:
    """The number times the factor; - where it is not known."""
    text = "-" if value is None else form.format(factor * value)
    return text if text.strip("-0.") else text.lstrip("-") or "-"  # no -0.0


def this() -> Any:
    """The module that runs as a program."""
    return sys.modules["__main__"]
