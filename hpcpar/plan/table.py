"""A partition as text: a table of 80 columns, the bottleneck with its reason, and the lines that `train` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcpar.plan.cut import Partition, Stage, Term

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("stage", "layers", "blocks", "ranks", "compute", "reduce", "send", "flight", "MB")
LEGEND = "ms of a minibatch over the replicas; minibatches in flight and MB held on a rank"


def table(found: Partition) -> Table:
    """A row a stage; times are those of one minibatch, over the replicas of the stage."""
    from rich import box
    from rich.table import Table

    out = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for name in COLUMNS:
        out.add_column(name, justify="left" if name == "layers" else "right", no_wrap=True)
    first = 0
    for i, (s, blocks) in enumerate(zip(found.stages, found.blocks, strict=True)):
        last = first + s.replicas - 1
        times = [f"{1e3 * x:.4g}" if x else "-" for x in (s.compute_s, s.reduce_s, s.send_s)]
        ranks = f"{first}" if first == last else f"{first}-{last}"
        out.add_row(str(i), span(found, s), str(blocks), ranks, *times, str(s.in_flight), f"{s.held_bytes / 1e6:.4g}")
        first = last + 1
    return out


def lines(found: Partition) -> list[str]:
    """The prediction, the bottleneck and why it is one, and the plan."""
    ranks, ms = sum(found.replicas), 1e3 * found.time_s
    out = [
        f"predicted {ms:.4g} ms a minibatch in steady state; one rank alone takes {1e3 * found.alone_s:.4g} ms",
        f"bottleneck: {why(found)}",
    ]
    if found.slots != tuple(range(ranks)):
        out.append(f"place the ranks on these slots of the machine, innermost fastest: {','.join(map(str, found.slots))}")
    return out


def plan_lines(found: Partition) -> list[str]:
    """Settings of `train`; without replicas any schedule with one stage a rank takes them."""
    out = [f"plan.pp = {len(found.stages)}", f"plan.stages = {found.blocks}"]
    if max(found.replicas) > 1:
        out += [f"plan.replicas = {found.replicas}", 'plan.schedule = "pipedream"']
    return out


def span(found: Partition, s: Stage | Term) -> str:
    """The layers in words."""
    names = found.layers.names
    return names[s.first] if s.first == s.last else f"{names[s.first]} .. {names[s.last]}"


def why(found: Partition) -> str:
    """What the slowest term is, and why no other cut makes it faster."""
    t = found.bottleneck
    if t.kind == "reduction":
        size = sum(found.layers.weight_bytes[t.first : t.last + 1]) / 1e6
        rate = found.levels[t.level - 1].bytes_per_s
        what = f"{size:.3g} MB of gradients of {span(found, t)} over {t.replicas} replicas"
        return f"the sum of {what} at {rate:.3g} bytes/s takes longer than any compute"
    if t.kind == "message":
        size, rate = found.layers.output_bytes[t.last] / 1e6, found.levels[t.level - 1].bytes_per_s
        return f"the activation behind {found.layers.names[t.last]} and its gradient, 2 x {size:.3g} MB at {rate:.3g} bytes/s"
    at = next(i for i, s in enumerate(found.stages) if (s.first, s.last) == (t.first, t.last))
    s = found.stages[at]
    text = f"compute of stage {at}, {span(found, s)}"
    if len(found.stages) == 1:
        return f"{text}: all layers on all ranks"
    if s.first == s.last:
        return f"{text}: a single layer is never cut"
    return f"{text}; " + "; ".join(
        f"with {found.layers.names[layer]} on stage {to} that one would take {1e3 * seconds:.4g} ms"
        for layer, to, seconds in found.shifts(at)
    )


def report(found: Partition) -> dict[str, Any]:
    """What --json prints."""
    t = found.bottleneck
    return {
        "ranks": sum(found.replicas),
        "levels": [{"components": x.components, "bytes_per_s": x.bytes_per_s} for x in reversed(found.levels)],
        "time_s": found.time_s,
        "alone_s": found.alone_s,
        "bottleneck": {"kind": t.kind, "layers": [t.first, t.last], "seconds": t.seconds, "level": t.level, "why": why(found)},
        "stages": [
            {
                "layers": list(found.layers.names[s.first : s.last + 1]),
                "blocks": blocks,
                "replicas": s.replicas,
                "compute_s": s.compute_s,
                "reduce_s": s.reduce_s,
                "send_s": s.send_s,
                "in_flight": s.in_flight,
                "held_bytes": s.held_bytes,
            }
            for s, blocks in zip(found.stages, found.blocks, strict=True)
        ],
        "plan": {"pp": len(found.stages), "stages": found.blocks, "replicas": found.replicas},
        "slots": list(found.slots),
    }
