"""hpcpar train CONFIG.toml --out DIR: train, alone or on every rank of mpirun or srun."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from hpcpar import config
from hpcpar.errors import Ended, PlanError


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("train", help="train a model, alone or under mpirun/srun")
    p.add_argument("config", type=Path, metavar="CONFIG.toml")
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run's folder: trace, metrics, checkpoints, summary")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, as in plan.pp=4")
    p.add_argument("--resume", action="store_true", help="go on from the newest complete checkpoint in DIR")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Train; every failure ends all ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise PlanError(f'no MPI library can be loaded ({e}); pip install "hpcpar[mpi]", or load the site\'s MPI') from None
    from hpcpar.comm.launcher import check_launcher
    from hpcpar.comm.world import World
    from hpcpar.run.failure import fail
    from hpcpar.run.recorder import Recorder
    from hpcpar.run.status import Status
    from hpcpar.run.stop import Signals
    from hpcpar.run.survive import Survivors
    from hpcpar.run.train import agreed

    library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
    check_launcher(os.environ, MPI.COMM_WORLD.Get_size(), library)
    recorder, signals = Recorder(), Signals()
    world = World(timeout_s=config.Run().timeout_s, wait="auto")
    left = Survivors(world, recorder, Status(world.rank, world.size), signals.which)
    try:
        described = agreed(world, lambda: config.load(args.config, args.set))
        world.waiter.timeout_s = described.run.timeout_s
        world.set_waiting(described.run.wait)
        left.train(described, args.out, args.resume, _rates(described), library)
    except PlanError as e:
        e.quiet = left.world.rank != 0
        raise
    except Ended as e:
        if left.world.rank == 0:
            print(f"hpcpar: {e}", file=sys.stderr, flush=True)
        return e.code
    except BaseException as e:
        if world.size == 1 and isinstance(e, KeyboardInterrupt):
            sys.stderr.write("\nhpcpar: interrupted\n")
            left.status.end("failed", 1, "interrupted")
            recorder.close()
            return 1
        fail(e, left.recorder, left.world, left.status)
    finally:
        left.status.release()
        signals.ignore()
    return 0


def _rates(described: config.Config) -> Any:
    """What rank 0 measures before step 1; an emulated run computes nothing, and measures nothing."""

    def measure() -> dict[str, Any]:
        if described.train.asleep or described.run.trace == "off":
            return {}
        from hpcpar.measure.rates import matrix_rate_of

        return {"matrix_flops_per_s_rank": matrix_rate_of(described.run.device, described.train.precision)}

    return measure
