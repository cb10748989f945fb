"""A report as tables for a terminal: 80 columns are enough, and 64 ranks stay on one page.

Up to ROWS ranks each have a row; above, the least, the mean and the most of each column stand with the ranks where they are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.analyse.efficiency_table import efficiency_tables, factors, scaling_table
from hpcpar.analyse.experts_table import exchange_tables, experts_tables
from hpcpar.analyse.grid import grid, size
from hpcpar.analyse.scaling import scaling

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

ROWS = 16
RUNS = 4  # beside each other
COLUMNS = 10
COSTS = 4  # findings of the diagnosis; --json and --html have all
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


def tables(report: dict[str, Any], detail: bool = False) -> list[RenderableType]:
    """What `hpcpar analyse DIR` prints, one table or line after the other; with `detail` longer lists and more of them."""
    out: list[RenderableType] = [f"{report['run']['folder']}: {plan_line(report)}"]
    out += [*report["run"]["gaps"], _facts([("", report)])]
    out += _costs(report["diagnosis"])
    if report["shares"]:
        out += _by_rank(LEGEND, report["shares"], _share_columns(report["shares"]), _percent)
        columns = {k: title for k, title in OVERLAP.items() if not k.startswith("copy") or any(row["copy_s"] for row in report["overlap"])}
        out += _by_rank("communication under way in a step, ms, and what compute hides of it, %", report["overlap"], columns, _overlap)
    out += efficiency_tables(report, detail)
    if any(row["staleness_mean"] is not None for row in report["workers"]):
        out += _by_rank("workers, each by its own clock", report["workers"], WORKERS, _worker)
    if report["volumes"]["operations"]:
        out += _volumes(report["volumes"]["operations"])
    out += [*experts_tables(report["experts"]), *exchange_tables(report["exchange"])]
    kinds = sorted({kind for row in report["memory"] for kind in row if kind != "rank"})
    if kinds:
        titles = {kind: kind.replace(" ", "\n") for kind in kinds}
        out += _by_rank("most held by rank", report["memory"], titles, lambda _, x: size(x), wide=6)
    return out


def _costs(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The costliest findings of the diagnosis, and what would change them."""
    if found:
        yield "what costs most of a step, and what would change it"
    for row in found[:COSTS]:
        text = f"{row['share']:6.1%}  {row['sentence']}. Try: {row['setting']}"
        yield textwrap.fill(text, 80, subsequent_indent=" " * 8, break_on_hyphens=False)
    if found:
        yield ""


def compared(reports: Sequence[dict[str, Any]], baseline: int | None = None) -> list[RenderableType]:
    """What `hpcpar analyse DIR DIR...` prints: a column a run, and a row a run against the baseline."""
    out: list[RenderableType] = [f"{i}  {r['run']['folder']}: {plan_line(r)}" for i, r in enumerate(reports, 1)]
    for i, r in enumerate(reports, 1):
        out += [f"{i}  {line}" for line in r["run"]["gaps"]]
        if r["efficiency"] and r["efficiency"]["why"]:
            out.append(f"{i}  serialisation and transfer are not known: {r['efficiency']['why']}")
    named = [(str(i), r) for i, r in enumerate(reports, 1)]
    out += [_facts(named[i : i + RUNS]) for i in range(0, len(named), RUNS)]
    return [*out, *scaling_table(scaling(reports, baseline))]


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


def _facts(runs: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """A row a measure of the whole run, a column a run."""
    table = grid(["", *(name for name, _ in runs)], header=len(runs) > 1)
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
        left_out = [n for n in (s["warm_up"], *s["resumed"]) if n is not None]
        words = f"without step{'s' * (len(left_out) > 1)} {', '.join(map(str, left_out[:3]))}{' ...' * (len(left_out) > 3)}"
        return f"{s['mean_s'] * 1e3:.4g} ms, {words if left_out else 'warm-up in it'}"

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

    def given(r: dict[str, Any]) -> str | None:
        t = r["throughput"]
        if not t or t["flops_per_s"] is None or t["peak_from"] == "measured":
            return None
        return "not known, give --peak" if t["mfu"] is None else f"{t['mfu']:.1%} of the given peak"

    def both(b: dict[str, Any]) -> str:
        return "  ".join("-" if b[k] is None else f"{b[k]:.4f}" for k in ("bubble_total", "bubble_ideal"))

    def of_pipeline(text: Callable[[dict[str, Any]], str | None]) -> Callable[[dict[str, Any]], str | None]:
        """Nothing for a run that has none."""
        return lambda r: None if (r["run"]["plan"] or {}).get("pp") == 1 else text(r)

    def load(name: str, form: str) -> Callable[[dict[str, Any]], str | None]:
        """Over the last steps, of the least even block."""

        def value(r: dict[str, Any]) -> str | None:
            known = [row["end"][name] for row in r["experts"] if row["end"][name] is not None]
            return form.format(max(known)) if known else None

        return value

    def clocks(r: dict[str, Any]) -> str | None:
        c = r["clocks"]
        if r["run"]["ranks"] == 1 or not (c["messages"] or c["meetings"] or c["points"][1]):
            return None
        bound = "not known" if c["bound_s"] is None else f"{c['bound_s'] * 1e6:.3g} us"
        return f"within {bound}; messages moved by {c['moved_s'] * 1e6:.3g} us"

    yield "clocks", clocks
    yield "steps", steps
    yield "step time", mean
    yield "  least to most", extremes
    yield "tokens/s", of("throughput.tokens_per_s", lambda x: f"{x:,.0f}")
    yield "arithmetic", rate
    yield "of the matrix rate", of("throughput.fraction", lambda x: f"{x:.1%}")
    yield "MFU", given
    yield "bubble: idle/total, /ideal", of_pipeline(of("bubble", both))
    yield "  closed form", of_pipeline(of("bubble.closed_form", both))
    yield "  clock, measured times", of_pipeline(of("bubble.clock", both))
    yield "experts: max/mean tokens", load("imbalance", "{:.3f}")
    yield "  assignments dropped", load("drop_rate", "{:.1%}")
    yield "  all-to-all of the step", of("exchange.share", lambda x: f"{x:.1%}")
    yield from factors()


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
    table = grid(["rank", *columns.values()])
    for row in rows:
        table.add_row(str(row["rank"]), *(text(name, row.get(name)) for name in columns))
    return table


def _extremes(rows: Sequence[dict[str, Any]], columns: dict[str, str], text: Callable[[str, Any], str]) -> Table:
    table = grid(["", *columns.values()])
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
    table = grid(["", "operation", "axis", "calls", "bytes", "a step", "on a ring"])
    for row in rows:
        calls, sizes = f"{row['calls']:,}", (size(row[k]) for k in ("bytes", "bytes_per_step", "ring_bytes_per_step"))
        table.add_row(row["kind"], row["operation"], row["axis"], calls, *sizes)
    return ["sent over all ranks; on a ring: what a rank would send a step", table]
