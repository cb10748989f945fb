"""Efficiencies, waiting, critical path and scaling as tables for a terminal of 80 columns; the long lists are for --detail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.analyse.grid import grid, size

if TYPE_CHECKING:
    from rich.console import RenderableType

TOP, LONG = 3, 24  # rows of a list without and with --detail
LEAST_S = 1e-6  # a wait that is worth a row
FACTORS = {
    "parallel": "parallel efficiency (POP)",
    "load_balance": "  load balance",
    "communication": "  communication",
    "serialisation": "    serialisation",
    "transfer": "    transfer",
    "computing": "compute of useful time",
}
WAITS = {
    "late_sender_s": "late senders",
    "late_receiver_s": "late receivers",
    "late_collective_s": "late to collectives",
    "transfer_s": "transfer",
    "unknown_s": "not known",
}


def factors() -> Iterator[tuple[str, Callable[[dict[str, Any]], str | None]]]:
    """(title, text of a report) of each factor, for the table of the whole run."""

    def of(key: str) -> Callable[[dict[str, Any]], str | None]:
        def text(r: dict[str, Any]) -> str | None:
            e = r["efficiency"]
            return f"{e[key]:.3f}" if e and e[key] is not None else None

        return text

    for key, title in FACTORS.items():
        yield title, of(key)


def efficiency_tables(report: dict[str, Any], detail: bool = False) -> list[RenderableType]:
    """Why factors are not known, what ranks waited for, the critical path; with `detail` bandwidths, stragglers and memory over time."""
    out: list[RenderableType] = []
    e, w, path = report["efficiency"], report["waiting"], report["critical_path"]
    if e and e["why"]:
        out.append(f"serialisation and transfer are not known: {e['why']}")
    if w and any(w[key] for key in WAITS):
        out += _waiting(w, LONG if detail else TOP)
    if path and report["run"]["ranks"] > 1:
        out += _path(path, LONG if detail else TOP)
    if detail:
        out += [*_bandwidth(report["bandwidth"]), *_memory(report["memory_over_time"])]
    return out


def scaling_table(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A row a run against the baseline."""
    table = grid(["", "ranks", "tokens\na step", "tokens/s", "", "speed-up", "effi-\nciency", "compu-\ntation", "parallel"])
    for i, row in enumerate(rows, 1):
        counts = (_number(row[key], ",.0f") for key in ("tokens_per_step", "tokens_per_s"))
        ratios = (_number(row[key], ".3f") for key in ("speedup", "efficiency", "computation", "parallel"))
        table.add_row(str(i), str(row["ranks"]), *counts, row["kind"] or "other model", *ratios)
    return ["efficiency = computation x parallel, over that of the baseline", table]


def _waiting(w: dict[str, Any], most: int) -> list[RenderableType]:
    table = grid([*WAITS.values()])
    table.add_row(*(_ms(w[key]) for key in WAITS))
    out: list[RenderableType] = ["waited in a step, ms, sum over ranks", table]
    pairs = [p for p in w["pairs"] if p["late_s"] >= LEAST_S]
    if pairs:
        table = grid(["rank", "waits for", "late", "waits", "late, ms", "transfer, ms"])
        for p in pairs[:most]:
            table.add_row(str(p["rank"]), str(p["waits_for"]), p["kind"].replace("_", " "), str(p["waits"]), *map(_ms, _times(p)))
        out += [_of("longest waits for late partners, a step", len(pairs), most), table]
    last = sorted((s for s in w["stragglers"] if s["caused_s"] >= LEAST_S), key=lambda s: -s["caused_s"])
    if last:
        table = grid(["rank", "last", "of collectives", "behind the first, ms", "others wait, ms a step"])
        for s in last[:most]:
            table.add_row(
                str(s["rank"]), f"{s['last']:,}", f"{s['share']:.0%} of {s['collectives']:,}", _ms(s["ahead_s"]), _ms(s["caused_s"])
            )
        out += [_of("ranks that enter collectives last", len(last), most), table]
    return out


def _times(p: dict[str, Any]) -> tuple[float, float]:
    return p["late_s"], p["transfer_s"]


def _path(path: dict[str, Any], most: int) -> list[RenderableType]:
    parts = sorted(((v, k) for k, v in path["parts"].items() if v >= 5e-4), reverse=True)
    ranks = [f"{row['rank']} {100 * row['share']:.1f}" for row in path["ranks"][: 2 * most]]
    more = len(path["ranks"]) - len(ranks)
    return [
        "critical path, %: " + ", ".join(f"{k.replace('_', ' ')} {100 * v:.1f}" for v, k in parts),
        f"  by rank: {', '.join(ranks)}{f' and {more} more' * (more > 0)}; it changes ranks {path['changes']:,} times",
        "",
    ]


def _bandwidth(found: dict[str, Any]) -> list[RenderableType]:
    out: list[RenderableType] = []
    rows, pairs = found["operations"], sorted(found["pairs"], key=lambda p: -p["bytes"])
    columns = ["calls", "bytes", "all", "waited for", "in calls"]
    if rows:
        table = grid(["", "operation", "axis", *columns])
        for row in rows:
            table.add_row(row["kind"], row["operation"], row["axis"], *_rate(row))
        out += ["bandwidth: bytes a second of all calls, a lower bound, and of those waited for", table]
    if pairs:
        table = grid(["from", "to", *columns])
        for row in pairs[:LONG]:
            table.add_row(str(row["source"]), str(row["destination"]), *_rate(row))
        out += [_of("bandwidth by pair, most bytes first", len(pairs), LONG), table]
    return out


def _rate(row: dict[str, Any]) -> list[str]:
    return [f"{row['calls']:,}", *(size(row[k]) for k in ("bytes", "bytes_per_s", "waited_bytes_per_s")), f"{row['waited_calls']:,}"]


def _memory(found: dict[str, Any] | None) -> list[RenderableType]:
    if not found or not found["kinds"]:
        return []
    names, every = list(found["kinds"]), max(1, len(found["times_s"]) // 12)
    table = grid(["at, s", *names])
    for i in range(0, len(found["times_s"]), every):
        known = ([b for b in found["kinds"][n]["most"][i : i + every] if b is not None] for n in names)
        table.add_row(f"{found['times_s'][i]:.3g}", *(size(max(k, default=None)) for k in known))
    return ["most held by a rank over the measured steps", table]


def _of(title: str, count: int, most: int) -> str:
    return title if count <= most else f"{title}: {most} of {count}"


def _number(x: float | None, form: str) -> str:
    return "-" if x is None else format(x, form)


def _ms(x: float | None) -> str:
    return "-" if x is None else f"{1e3 * x:,.4g}"
