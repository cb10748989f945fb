"""A report as tables for a terminal: 80 columns are enough, and 64 ranks stay on one page.

Up to ROWS ranks each have a row; above, the least, the mean and the most of each column stand with the ranks where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

ROWS = 16
COLUMNS = 10
SHARES = {
    "compute": "all\ncomp",
    "F": "F",
    "B": "B",
    "I": "I",
    "W": "W",
    "recompute": "re-\ncomp",
    "update": "up-\ndate",
    "send_receive": "send,\nrecv",
    "collective": "coll",
    "wait_messages": "wait\nmsg",
    "wait_collectives": "wait\ncoll",
    "wait_copies": "wait\ncopy",
    "copy": "copy",
    "io": "i/o",
    "idle": "idle",
}
LEGEND = (
    "time of the steps by rank, %: compute, all and by kind; blocking calls (send,\n"
    "recv and coll: collectives); waits for messages, collectives and copies; idle"
)
OVERLAP = {
    "collective_s": "collectives",
    "collective_hidden": "hidden",
    "send_receive_s": "sends, receives",
    "send_receive_hidden": "hidden ",
    "copy_s": "copies",
    "copy_hidden": "hidden  ",
}
WORKERS = {
    "steps": "steps",
    "steps_per_s": "steps/s",
    "wait": "wait, %",
    "wait_clock": "for clocks, %",
    "staleness_mean": "staleness, mean",
    "staleness_max": "most",
}
ALWAYS = ("compute", "F", "B", "send_receive", "collective", "wait_messages", "wait_collectives", "idle")


def tables(report: dict[str, Any]) -> list[RenderableType]:
    """What `hpcpar analyse DIR` prints, one table or line after the other."""
    out: list[RenderableType] = [f"{report['run']['folder']}: {plan_line(report)}"]
    for rank, why in report["run"]["missing"].items():
        out.append(f"rank {rank} is left out: {why}")
    out.append(_facts([("", report)]))
    if report["shares"]:
        out += _by_rank(LEGEND, report["shares"], _share_columns(report["shares"]), _percent)
        columns = {k: title for k, title in OVERLAP.items() if not k.startswith("copy") or any(row["copy_s"] for row in report["overlap"])}
        out += _by_rank("communication under way in a step, ms, and what compute hides of it, %", report["overlap"], columns, _overlap)
    if any(row["staleness_mean"] is not None for row in report["workers"]):
        out += _by_rank("workers, each by its own clock", report["workers"], WORKERS, _worker)
    if report["volumes"]["operations"]:
        out += _volumes(report["volumes"]["operations"])
    kinds = sorted({kind for row in report["memory"] for kind in row if kind != "rank"})
    if kinds:
        titles = {kind: kind.replace(" ", "\n") for kind in kinds}
        out += _by_rank("most held by rank", report["memory"], titles, lambda _, x: size(x), wide=6)
    return out


def compared(reports: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """What `hpcpar analyse DIR DIR...` prints: a column a run."""
    out: list[RenderableType] = [f"{i}  {r['run']['folder']}: {plan_line(r)}" for i, r in enumerate(reports, 1)]
    for i, r in enumerate(reports, 1):
        out += [f"{i}  rank {rank} is left out: {why}" for rank, why in r["run"]["missing"].items()]
    return [*out, _facts([(str(i), r) for i, r in enumerate(reports, 1)])]


def plan_line(report: dict[str, Any]) -> str:
    """The plan in words, as far as it is known."""
    plan, ranks = report["run"]["plan"], report["run"]["ranks"]
    words = [f"{ranks} rank{'s' * (ranks != 1)}"]
    if plan:
        words += [f"{axis}={plan[axis]}" for axis in ("dp", "pp", "cp", "tp", "ep") if plan.get(axis, 1) != 1]
        if plan.get("pp", 1) > 1:
            words.append(str(plan.get("schedule")))
        count = plan.get("microbatches", 1)
        words.append(f"{count} microbatch{'es' * (count != 1)}" + (f" x {plan['accumulate']}" if plan.get("accumulate", 1) > 1 else ""))
    return ", ".join(words)


def size(count: float | None) -> str:
    """Bytes with a binary prefix and three digits."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def _facts(runs: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """A row a measure of the whole run, a column a run."""
    table = _table(["", *(name for name, _ in runs)], header=len(runs) > 1)
    for name, value in _measures():
        texts = [value(report) for _, report in runs]
        if any(texts):
            table.add_row(name, *(text or "-" for text in texts))
    return table


def _measures() -> Iterable[tuple[str, Callable[[dict[str, Any]], str | None]]]:
    def steps(r: dict[str, Any]) -> str:
        s = r["steps"]
        return f"{s['count']} ({s['first']} to {s['last']})" if s["count"] else "none that all ranks have"

    def mean(r: dict[str, Any]) -> str | None:
        s = r["steps"]
        if not s["count"]:
            return None
        return f"{s['mean_s'] * 1e3:.4g} ms, {'without step ' + str(s['warm_up']) if s['warm_up'] is not None else 'warm-up in it'}"

    def extremes(r: dict[str, Any]) -> str | None:
        s = r["steps"]
        return f"{s['min_s'] * 1e3:.4g} to {s['max_s'] * 1e3:.4g} ms" if s["count"] else None

    def of(part: str, text: Callable[[Any], str]) -> Callable[[dict[str, Any]], str | None]:
        first, *rest = part.split(".")

        def value(r: dict[str, Any]) -> str | None:
            at = r[first]
            for key in rest:
                at = at.get(key) if at else None
            return None if at is None else text(at)

        return value

    def rate(r: dict[str, Any]) -> str | None:
        t = r["throughput"]
        return f"{t['flops_per_s'] / 1e9:,.4g} GFLOP/s" if t and t["flops_per_s"] is not None else None

    def both(b: dict[str, Any]) -> str:
        return "  ".join("-" if b[k] is None else f"{b[k]:.4f}" for k in ("bubble_total", "bubble_ideal"))

    yield "steps", steps
    yield "step time", mean
    yield "  least to most", extremes
    yield "tokens/s", of("throughput.tokens_per_s", lambda x: f"{x:,.0f}")
    yield "arithmetic", rate
    yield "of the matrix rate", of("throughput.fraction", lambda x: f"{x:.1%}")
    yield "bubble: idle/total, /ideal", of("bubble", both)
    yield "  closed form", of("bubble.closed_form", both)
    yield "  clock, measured times", of("bubble.clock", both)


def _share_columns(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The columns that hold something; F and B and what is not compute always."""
    return {name: title for name, title in SHARES.items() if name in ALWAYS or any(row[name] for row in rows)}


def _percent(_: str, x: float | None) -> str:
    return "-" if x is None else f"{100 * x:.1f}"


def _overlap(name: str, x: float | None) -> str:
    return _percent(name, x) if name.endswith("hidden") or x is None else f"{1e3 * x:.4g}"


def _worker(name: str, x: float | None) -> str:
    return _percent(name, x) if name.startswith("wait") or x is None else f"{x:.4g}"


def _by_rank(
    title: str, rows: Sequence[dict[str, Any]], columns: dict[str, str], text: Callable[[str, Any], str], wide: int = COLUMNS
) -> list[RenderableType]:
    """A row a rank, or least, mean and most where there are many; more columns than a terminal is wide follow in a table of their own."""
    names = list(columns)
    parts = [names[i : i + wide] for i in range(0, len(names), wide)]
    fill = _each if len(rows) <= ROWS else _extremes
    return [title, *(fill(rows, {name: columns[name] for name in part}, text) for part in parts)]


def _each(rows: Sequence[dict[str, Any]], columns: dict[str, str], text: Callable[[str, Any], str]) -> Table:
    table = _table(["rank", *columns.values()])
    for row in rows:
        table.add_row(str(row["rank"]), *(text(name, row.get(name)) for name in columns))
    return table


def _extremes(rows: Sequence[dict[str, Any]], columns: dict[str, str], text: Callable[[str, Any], str]) -> Table:
    table = _table(["", *columns.values()])
    known = {name: [(row[name], row["rank"]) for row in rows if row.get(name) is not None] for name in columns}

    def line(title: str, cell: Callable[[str, list[tuple[Any, int]]], str]) -> None:
        table.add_row(title, *(cell(name, values) if values else "-" for name, values in known.items()))

    line("least", lambda name, v: text(name, min(v)[0]))
    line("  on rank", lambda _, v: str(min(v)[1]))
    line("mean", lambda name, v: text(name, sum(x for x, _ in v) / len(v)))
    line("most", lambda name, v: text(name, max(v, key=lambda x: (x[0], -x[1]))[0]))
    line("  on rank", lambda _, v: str(max(v, key=lambda x: (x[0], -x[1]))[1]))
    return table


def _volumes(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    table = _table(["", "operation", "axis", "calls", "bytes", "a step", "on a ring"])
    for row in rows:
        calls, sizes = f"{row['calls']:,}", (size(row[k]) for k in ("bytes", "bytes_per_step", "ring_bytes_per_step"))
        table.add_row(row["kind"], row["operation"], row["axis"], calls, *sizes)
    return ["sent over all ranks; on a ring: what a rank would send a step", table]


def _table(columns: Sequence[str], header: bool = True) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=header, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or name in ("operation", "axis") else "right", no_wrap=i == 0, overflow="fold")
    return table
