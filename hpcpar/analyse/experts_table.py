"""What a report says of experts, for a terminal of 80 columns: the load of each block, and the exchange between ranks."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, Any

from hpcpar.analyse.grid import grid, size

if TYPE_CHECKING:
    from rich.console import RenderableType

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
RANKS = 8  # up to which the bytes of every pair are shown
PAIRS = 10  # of more ranks, the heaviest
COLUMNS = {
    "imbalance": ("max/\nmean", "{:.2f}", 1),
    "cv": ("CV", "{:.2f}", 1),
    "wanted_imbalance": ("wanted:\nmax/mean", "{:.2f}", 1),
    "wanted_cv": ("CV ", "{:.2f}", 1),
    "drop_rate": ("drop-\nped, %", "{:.1f}", 100),
    "unrouted_rate": ("no ex-\npert, %", "{:.1f}", 100),
    "entropy": ("entropy,\nnats", "{:.3f}", 1),
    "balance": ("bal.\nloss", "{:.2g}", 1),
    "z": ("z-\nloss", "{:.2g}", 1),
}


def experts_tables(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """Two lines a block, over all steps and over the last tenth; a block that not all tokens were seen of says so."""
    if not rows:
        return []
    columns = {name: look for name, look in COLUMNS.items() if name != "z" or any(row["mean"]["z"] for row in rows)}
    table = grid(["block", *(title for title, _, _ in columns.values())])
    for row in rows:
        for when, first in (("mean", str(row["block"])), ("end", "  end")):
            values = [(row[when][name], form, times) for name, (_, form, times) in columns.items()]
            table.add_row(first, *("-" if x is None else form.format(times * x) for x, form, times in values))
    kinds = sorted({row["experts"] for row in rows})
    head = f"{' or '.join(map(str, kinds))} experts a block: tokens a step, mean, and over the last tenth (end)"
    parts = [f"block {r['block']}: of {r['seen']:.1%} of the tokens" for r in rows if r["seen"] is not None and abs(r["seen"] - 1) > 1e-9]
    loose = [str(row["block"]) for row in rows if not row["causal"]]
    if loose:
        parts.append(f"block {', '.join(loose)}: not causal, later tokens of a sample count too")
    return [head, table, *parts]


def exchange_tables(found: dict[str, Any] | None) -> list[RenderableType]:
    """The share of the step, the bytes of every pair or of the heaviest, and the slowest one."""
    if not found:
        return []
    out: list[RenderableType] = []
    if found["share"] is not None:
        out.append(f"all-to-all of experts: {found['share']:.1%} of the step under way, {found['waited']:.1%} waited for")
    if found["pairs"]:
        stays = "" if found["stays"] is None else f"; {found['stays']:.1%} of the bytes stay on their rank"
        out += [f"rows to experts and back, a step{stays}", _matrix(found["pairs"])]
    slow = found["slowest"]
    if slow:
        pair = f"rank {slow['source']} to {slow['destination']}, {size(slow['bytes_per_step'])} a step"
        if slow["seconds_per_step"] is None:
            out.append(f"heaviest pair: {pair}; the MPI shows no times of pairs")
        else:
            rate = "-" if slow["bytes_per_s"] is None else f"{size(slow['bytes_per_s'])}/s"
            out.append(f"slowest pair: {pair}, {1e3 * slow['seconds_per_step']:.4g} ms a step, {rate}")
    return out


def _matrix(pairs: list[dict[str, Any]]) -> RenderableType:
    ranks = sorted({p[end] for p in pairs for end in ("source", "destination")})
    if len(ranks) > RANKS:
        table = grid(["from", "to", "calls", "a step"])
        for p in sorted(pairs, key=lambda p: -p["bytes"])[:PAIRS]:
            table.add_row(str(p["source"]), str(p["destination"]), f"{p['calls']:,}", size(p["bytes_per_step"]))
        return table
    held = {(p["source"], p["destination"]): p["bytes_per_step"] for p in pairs}
    power = max(0, int(log2(max(1.0, *held.values()))) // 10)
    table = grid([f"from to, {UNITS[power]}", *map(str, ranks)])
    for source in ranks:
        values = [held.get((source, destination)) for destination in ranks]
        table.add_row(str(source), *("-" if x is None else f"{x / 1024**power:.3g}" for x in values))
    return table
