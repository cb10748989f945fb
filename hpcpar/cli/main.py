"""The command line: one file a verb, found by name; a verb's libraries are imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import hpcpar
from hpcpar.errors import PlanError

# verb: what `hpcpar --help` says; hpcpar/cli/VERB.py has add(subparsers), which registers the parser and sets `func`
VERBS = (
    "train",
    "analyse",
    "compare",
    "draw",
    "sample",
    "doctor",
    "bench",
    "profile",
    "partition",
    "memory",
    "checkpoint",
    "eval",
    "launch",
    "submit",
    "jobs",
)


def parser(wanted: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of the wanted verbs."""
    top = argparse.ArgumentParser(prog="hpcpar", description=hpcpar.__doc__)
    top.add_argument("--version", action="version", version=f"hpcpar {hpcpar.__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in wanted:
        importlib.import_module(f"hpcpar.cli.{verb}").add(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns 0 done, 2 refused, 1 failed."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser(argv[:1] if argv[:1] and argv[0] in VERBS else VERBS).parse_args(argv)
    try:
        return args.func(args)
    except PlanError as e:
        if not e.quiet:
            print(f"hpcpar: {e}", file=sys.stderr, flush=True)
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has left
        return 1


if __name__ == "__main__":
    sys.exit(main())
