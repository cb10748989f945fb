"""hpcpar bench: the training step against this machine's matrix rate, the cost of the trace, and (under mpirun) weak scaling."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("bench", help="measure the training step; under mpirun: weak scaling")
    p.add_argument("--json", action="store_true")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print ratios."""
    from mpi4py import MPI

    from hpcpar.comm.world import World
    from hpcpar.measure import bench

    world = World()
    if world.size == 1:
        found: dict[str, Any] = {"step": bench.step(world), "trace": bench.trace(world)}
    else:
        world.set_waiting("yield")  # while one rank is timed alone, the others leave it the machine
        alone = World(MPI.COMM_SELF.Dup())
        found = {"scaling": bench.scaling(world, alone), "pipeline": bench.pipeline(world, alone)}
    if world.rank == 0:
        print(json.dumps(found) if args.json else "\n".join(_lines(found)))
    return 0


def _lines(found: dict[str, Any]) -> list[str]:
    out = []
    if s := found.get("step"):
        out += [
            "one process, one thread, float32: 6 layers, width 384, 6 heads, context 256, batch 8",
            f"  matrix rate      {s['matrix_flops_per_s'] / 1e9:8.1f} GFLOP/s",
            f"  step             {s['step_flops_per_s'] / 1e9:8.1f} GFLOP/s  ({s['step_flops'] / 1e9:.1f} GFLOP in {s['step_s']:.3f} s; "
            "the causal half of attention counted)",
            f"  fraction         {s['fraction']:8.1%}  (from {s['fraction_min']:.1%} to {s['fraction_max']:.1%})",
        ]
    if t := found.get("trace"):
        out.append(f"  trace            {t['overhead']:8.2%} of the step  ({t['record_ns']:.0f} ns an event)")
    if w := found.get("scaling"):
        out.append(
            f"weak scaling on {w['ranks']} ranks of one thread: {w['efficiency']:.1%}  "
            f"(alone {w['alone_s']:.3f} s, together {w['together_s']:.3f} s)"
        )
    if q := found.get("pipeline"):
        out.append(
            f"1F1B over {q['ranks']} ranks, {q['microbatches']} microbatches: {q['over_closed_form']:+.1%} on the closed form  "
            f"(alone {q['alone_s']:.3f} s, together {q['together_s']:.3f} s)"
        )
    return out
