"""hpcpar bench: the training step against this machine's matrix rate and the cost of the trace; under mpirun the all-reduce and scaling."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError

ALONE, TOGETHER = ("step", "trace", "experts"), ("allreduce", "scaling", "pipeline")


def add(verbs: Any) -> None:
    """Register the verb."""
    p = verbs.add_parser("bench", help="measure the training step; under mpirun: the all-reduce, weak scaling, a pipeline")
    p.add_argument("--json", action="store_true")
    p.add_argument("--only", metavar="A,B", help=f"alone: {', '.join(ALONE)}; under mpirun: {', '.join(TOGETHER)}; all if not said")
    p.add_argument("--variants", default="auto,mpi", metavar="A,B", help="of scaling: algorithms of plan.sync, or thread (auto,mpi)")
    p.add_argument("--out", type=Path, metavar="FILE", help="measure the rates of the machine instead, and write them: TOML")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of --out (default: %(default)s)")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print ratios."""
    from mpi4py import MPI

    from hpcpar.collectives import ALGORITHMS
    from hpcpar.comm.world import World
    from hpcpar.measure import allreduce, bench, bench_experts

    world = World(wait="auto")
    if args.out:
        return _machine(world, args.out, args.device)
    every = ALONE if world.size == 1 else TOGETHER
    wanted = args.only.split(",") if args.only else every
    variants = args.variants.split(",")
    for option, words, known in (("only", wanted, every), ("variants", variants, ("auto", "mpi", "thread", *ALGORITHMS))):
        if unknown := [w for w in words if w not in known]:
            error = PlanError(f"--{option} {unknown[0]}: on {world.size} ranks there are {', '.join(known)}")
            error.quiet = world.rank != 0
            raise error
    alone = World(MPI.COMM_SELF.Dup())
    measures = {
        "step": lambda: bench.step(world),
        "trace": lambda: bench.trace(world),
        "experts": bench_experts.experts,
        "allreduce": lambda: allreduce.measure(world),
        "scaling": lambda: bench.scaling(world, alone, variants),
        "pipeline": lambda: bench.pipeline(world, alone),
    }
    found = {name: measures[name]() for name in every if name in wanted}
    if world.rank == 0:
        print(json.dumps(found) if args.json else "\n".join(_lines(found)))
    return 0


def _machine(world: Any, path: Path, device: str) -> int:
    """Measure the machine; rank 0 writes the file."""
    from hpcpar.measure import network
    from hpcpar.run import settings

    threads = settings.threads_here(0, world.cores, world.node_ranks)
    settings.set_threads(threads)
    found = network.measure(world, threads, device)
    if found is None:
        return 0
    found.write(path)
    c = found.compute
    print(
        f"{found.ranks} ranks on {found.nodes} nodes, {threads} threads each: {c.float32_flops_per_s / 1e9:.1f} GFLOP/s float32 alone, "
        f"{c.together_float32_flops_per_s / 1e9:.1f} together, memory {c.copy_bytes_per_s / 1e9:.1f} GB/s",
        file=sys.stderr,
    )
    for name, link in (("inside a node", found.network.inside), ("across nodes", found.network.across)):
        if link:
            rates = f"{link.bytes_per_s / 1e9:.2f} GB/s, {link.together_bytes_per_s / 1e9:.2f} with all pairs at once"
            print(f"{name}: {link.latency_s * 1e6:.1f} us, {rates}", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)
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
    if a := found.get("allreduce"):
        out.append(
            f"all-reduce of {a['bytes'] / 2**20:.0f} MiB over {a['ranks']} ranks, auto = {a['auto']}; "
            f"a copy of it by each rank at once takes {a['copy_s'] * 1e3:.2f} ms"
        )
        out += [
            f"  {name:16} {w['seconds'] * 1e3:8.2f} ms  {w['against_mpi']:5.2f} x as fast as the MPI's own, {w['copies']:.1f} copies"
            for name, w in a["ways"].items()
        ]
    if e := found.get("experts"):
        out.append(
            f"  8 experts, top-2 {e['ratio']:8.2f} x the seconds of a dense MLP of the same arithmetic  (from {e['ratio_min']:.2f} to "
            f"{e['ratio_max']:.2f}; {e['experts_s']:.3f} s and {e['dense_s']:.3f} s, width 384, {e['experts_flops'] / 1e9:.1f} GFLOP)"
        )
    if w := found.get("scaling"):
        out.append(
            f"weak scaling on {w['ranks']} ranks of one thread, {w['microbatches']} microbatches: alone {w['alone_s']:.3f} s, "
            f"all at once and apart {w['apart_s']:.3f} s ({w['apart']:.1%}: contention for the memory)"
        )
        out += [
            f"  {name:16} {v['efficiency']:8.1%}  (together {v['together_s']:.3f} s, synchronisation {v['synchronisation']:+.1%})"
            for name, v in w["variants"].items()
        ]
    if q := found.get("pipeline"):
        out.append(
            f"1F1B over {q['ranks']} ranks, {q['microbatches']} microbatches: {q['over_closed_form']:+.1%} on the closed form  "
            f"(alone {q['alone_s']:.3f} s, together {q['together_s']:.3f} s)"
        )
    return out
