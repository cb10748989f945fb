"""`hpcpar doctor`: what this machine, its Python and its MPI can do."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from typing import Any

WIDTH, LABEL = 80, 15


def add(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this machine, its Python and its MPI can do",
        description="Print versions, cores, BLAS threads, the MPI library, whether the launcher matches it, whether MPI takes device "
        "arrays, GPUs, HDF5 and Slurm. MPI is started in child processes only, so this runs where there is none. Under mpirun the first "
        "rank prints.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Find and print; always 0."""
    if _rank() > 0:
        return 0
    from hpcpar.measure import doctor

    found = doctor.facts()
    print(json.dumps(found, indent=2) if args.json else "\n".join(text(doctor.lines(found))))
    return 0


def text(rows: list[tuple[str, str]]) -> list[str]:
    """Rows (label, text) as aligned lines of at most 80 columns; a path longer than that stays whole."""
    out = []
    for label, value in rows:
        wrapped = textwrap.wrap(value, WIDTH - LABEL, break_long_words=False, break_on_hyphens=False) or [""]
        out += [f"{label if i == 0 else '':<{LABEL}}{line}" for i, line in enumerate(wrapped)]
    return out


def _rank() -> int:
    """This process's rank as its launcher tells it; 0 without one."""
    from hpcpar.comm.launcher import SIGNS

    said = (os.environ.get(rank, "") for _, rank, _ in SIGNS)
    return next((int(s) for s in said if s.isdigit()), 0)
