"""hpcpar eval DIR: the held-out loss of a checkpoint, on one process or on every rank of mpirun or srun."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from hpcpar import config
from hpcpar.errors import PlanError


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("eval", help="held-out loss of a checkpoint", description=__doc__)
    p.add_argument("checkpoint", type=Path, metavar="DIR", help="a checkpoint, or the folder of a run: its newest one")
    p.add_argument("--samples", type=int, default=0, metavar="N", help="held-out samples (default: train.eval_samples of the run)")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, as in data.source=F or plan.pp=4")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print on rank 0; every failure ends all ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise PlanError(f'no MPI library can be loaded ({e}); pip install "hpcpar[mpi]", or load the site\'s MPI') from None
    from hpcpar.comm.launcher import check_launcher
    from hpcpar.comm.world import World
    from hpcpar.run.failure import fail
    from hpcpar.run.held_out import held_out
    from hpcpar.run.recorder import Recorder

    check_launcher(os.environ, MPI.COMM_WORLD.Get_size(), MPI.Get_library_version().split("\n")[0].strip("\0 "))
    recorder = Recorder()
    world = World(timeout_s=config.Run().timeout_s, wait="auto")
    try:
        found = held_out(args.checkpoint, args.samples, args.set, world, recorder)
    except PlanError as e:
        e.quiet = world.rank != 0
        raise
    except BaseException as e:
        fail(e, recorder, world)
    if world.rank == 0:
        _print(found, args.json)
    return 0


def _print(found: dict[str, Any], as_json: bool) -> None:
    for note in found["notes"]:
        print(f"hpcpar: {note}", file=sys.stderr)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print(f"held-out loss {found['held_out_loss']:.6f} nats a token over {found['labels']:,} tokens of {found['samples']:,} samples")
        print(f"of {found['checkpoint']}, step {found['step']}, on {found['source']}")
