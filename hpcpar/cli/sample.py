"""hpcpar sample CHECKPOINT --prompt TEXT: text from a checkpoint, or from the newest one of a run's folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("sample", help="write text from a checkpoint")
    p.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint, or the folder of a run")
    p.add_argument("--prompt", default="def ", help='the text to go on from (default "def ")')
    p.add_argument("--tokens", type=int, default=200, metavar="N")
    p.add_argument("--temperature", type=float, default=0.8, help="0 takes the most likely token each time")
    p.add_argument("--seed", type=int, default=1)
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Write prompt and continuation to stdout, byte by byte, as they come."""
    from hpcpar import checkpoint
    from hpcpar.run.sample import Sampler

    path, said = checkpoint.find(args.checkpoint)
    for text in said:
        print(f"hpcpar: {text}", file=sys.stderr)
    if args.tokens < 0 or args.temperature < 0:
        raise PlanError(f"--tokens {args.tokens} --temperature {args.temperature}: neither may be negative")
    sampler = Sampler(path)
    if sampler.config.model.vocabulary != 256:
        raise PlanError(f"{path} has a vocabulary of {sampler.config.model.vocabulary}; text is written from byte models (256) alone")
    prompt = args.prompt.encode()
    out = sys.stdout.buffer
    out.write(prompt)
    for token in sampler.tokens(list(prompt), args.tokens, args.temperature, args.seed):
        out.write(bytes([token]))
        out.flush()
    out.write(b"\n")
    out.flush()
    return 0
