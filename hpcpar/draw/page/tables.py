"""A report as HTML tables, whatever it holds: a new measure is a new table, without a line here.

    a list of rows           ->  a table whose columns sort
    numbers of a dict        ->  a table of two columns
    dict in a dict           ->  its name before theirs: "closed form: bubble total"

The name of a number tells its unit: `_s` seconds (shown in ms), `_bytes` bytes, `_per_s` a second. What is not known is shown as -.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

MOST = 500  # rows of a table; the page says how many there are
TITLES = {
    "steps": ("Steps", "the mean leaves out the first step, the warm-up"),
    "throughput": ("Tokens and arithmetic", "fraction: of the machine's own matrix rate, as the run measured it"),
    "shares": ("Time of the steps by rank", "% of the time; an instant is in one column; compute: F, I, W, B, recompute and update"),
    "overlap": ("Communication under way", "ms a step; hidden: the % of it during which the rank computed"),
    "workers": ("Workers, each by its own clock", "steps of a rank; the waits are % of its time"),
    "bubble": ("Bubble of the pipeline", "measured; by the clock with measured times; by closed form; total: idle/all, ideal: idle/work"),
    "volumes: operations": ("What was sent", "bytes over all ranks; a step; ring: what a rank would send a step on a ring"),
    "volumes: pairs": ("Who sent to whom", "messages between two ranks"),
    "memory": ("The most that each rank held", "bytes by kind"),
}  # fmt: skip
UNITS = {"flops per s": "arithmetic, GFLOP/s", "bytes per s": "bandwidth, MB/s", " per s": "/s", " s": ", ms"}  # by the end of a name
PERCENT = ("hidden", "fraction", "bubble_total", "bubble_ideal", "share", "wait", "wait_clock")


def tables(report: Mapping[str, Any]) -> str:
    """The tables of all measures of a report, one section each."""
    return "\n".join(_section(name, rows) for key, value in report.items() for name, rows in _parts(key, value) if rows)


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and values."""
    lines = "".join(f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<div class=wide><table class=facts>{lines}</table></div>"


def grid(rows: Sequence[Mapping[str, Any]], percent: bool = False) -> str:
    """A table whose columns sort; columns that hold nothing but 0 or None are left out."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [n for n in names if n == "rank" or any(row.get(n) for row in rows)]
    head = "".join(f"<th scope=col><button type=button>{escape(header(n, percent))}</button></th>" for n in names)
    body = "".join("<tr>" + "".join(_cell(n, row.get(n), percent) for n in names) + "</tr>" for row in rows[:MOST])
    note = f"<p>the first {MOST:,} of {len(rows):,} rows; <code>hpcpar analyse --json</code> has all</p>" if len(rows) > MOST else ""
    return f"{note}<div class=wide><table class=sorts><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def header(name: str, percent: bool = False) -> str:
    """A name of the report as words with its unit."""
    words = name.replace("_", " ")
    if _is_percent(name) or (percent and name != "rank"):
        return f"{words}, %"
    for ending, unit in UNITS.items():
        if words.endswith(ending):
            return words.removesuffix(ending) + unit
    return words


def text(name: str, value: Any, percent: bool = False) -> str:
    """A value as it is shown, in the unit of its header."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(x) for x in value)
    if _is_percent(name) or (percent and name != "rank"):
        return f"{100 * value:.1f}"
    if name.endswith("flops_per_s"):
        return f"{value / 1e9:,.4g}"
    if name.endswith("bytes_per_s"):
        return f"{value / 1e6:,.4g}"
    if "bytes" in name:
        return size(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return f"{1e3 * value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes with a unit of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def _is_percent(name: str) -> bool:
    return name.rpartition(": ")[2] in PERCENT or name.endswith(("_hidden", "_share"))


def _parts(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(name, rows) of each table that a value gives: rows are a list of dicts, or a dict of plain values."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield key, value
    elif isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for name, inner in value.items():
            if isinstance(inner, Mapping) and not any(isinstance(x, Mapping | list) for x in inner.values()):
                plain |= {f"{name}: {n}": x for n, x in inner.items()}
            elif isinstance(inner, Mapping) or (isinstance(inner, list) and inner and isinstance(inner[0], Mapping)):
                yield from _parts(f"{key}: {name}", inner)
            else:
                plain[str(name)] = inner
        yield key, plain


def _section(key: str, rows: Any) -> str:
    title, note = TITLES.get(key, (key.replace("_", " ").capitalize(), ""))
    names_kinds = key == "memory" and isinstance(rows, list)
    if isinstance(rows, list):
        rows = [{n if n == "rank" or not names_kinds else f"{n} bytes": x for n, x in row.items()} for row in rows]
        if key == "volumes: pairs":
            rows = sorted(rows, key=lambda row: -row["bytes"])
        inner = grid(rows, percent=key == "shares")
    else:
        inner = facts([(header(n), text(n, x)) for n, x in rows.items()])
    return f"<section><h2>{escape(title)}</h2>{f'<p>{escape(note)}</p>' if note else ''}{inner}</section>"


def _cell(name: str, value: Any, percent: bool) -> str:
    shown = text(name, value, percent)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class=number data-v="{value!r}">{escape(shown)}</td>'
    return f"<td>{escape(shown)}</td>"
