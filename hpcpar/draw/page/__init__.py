"""One self-contained HTML file of a run: summary and diagnosis, a timeline that zooms, tables that sort, the run's description.

    summary      what it came to; what costs most and which setting would change it
    timeline     Bokeh's axes, hover and tools (chart.py), filled with what is in view by page.js from packed events (packed.py)
    tables       every measure of the report (tables.py)
    the run      its configuration, hosts, versions

It opens without a network: Bokeh's script, the styles and the events are inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from hpcpar.draw.page.packed import MOST, pack
from hpcpar.draw.page.tables import facts, grid, header, tables, text
from hpcpar.draw.timeline import STYLES
from hpcpar.errors import PlanError
from hpcpar.trace.schema import Axis, Kind, Operation

ELSEWHERE = ("run", "diagnosis")  # what has a section of its own
NUMBERED = (Kind.F, Kind.B, Kind.I, Kind.W)
HEAD = (
    ("steps", "count", "steps"),
    ("steps", "mean_s", "mean step, ms"),
    ("throughput", "tokens_per_s", "tokens/s"),
    ("throughput", "flops_per_s", "arithmetic, GFLOP/s"),
    ("throughput", "fraction", "of the machine's matrix rate, %"),
    ("bubble", "bubble_total", "bubble of the pipeline (idle / total), %"),
)


def save(
    path: str | Path,
    report: Mapping[str, Any],
    description: Mapping[str, Any],
    plan: str,
    lanes: Mapping[int, np.ndarray],
    steps: Sequence[tuple[int, int, int]],
    chosen: tuple[int, int] | None,
    most: int = MOST,
) -> None:
    """Write the page of one run.

    report        the measures; one that the page does not know becomes a table
    description   that of the trace; plan: the same in a line
    lanes         all events (n,) EVENT of each readable rank, on one clock
    steps         (number, start, end) of each step in ns; chosen: the first and last number of those that are shown at first
    most          events up to which all are kept; above, those outside the chosen steps are merged

    Raises PlanError where Bokeh is not installed and for a file that cannot be written.
    """
    library = _library()
    shown = [(a, b) for n, a, b in steps if chosen and chosen[0] <= n <= chosen[1]]
    window = (shown[0][0], max(b for _, b in shown)) if shown else (0, 0)
    packed = pack(lanes, window, most)
    origin, ms = packed["origin"], 1e-6
    first, last = ((t - origin) * ms for t in window) if window[1] > window[0] else (0.0, max(packed["length"] * ms, 1e-3))
    from hpcpar.draw.page.chart import timeline

    present = {int(k) for events in lanes.values() for k in np.unique(events["kind"])}
    kinds = [kind for kind in STYLES if kind in present]
    margin = 0.02 * (last - first)
    ranks, missing = report["run"]["ranks"], [int(rank) for rank in report["run"]["missing"]]
    figure = timeline(ranks, missing, packed["length"] * ms, first - margin, last + margin, kinds)
    packed |= {
        "steps": [(n, (a - origin) * ms, (b - origin) * ms) for n, a, b in steps],
        "chosen": chosen or [None],
        "kinds": [kind.name for kind in kinds],
        "places": {kind.name: (style.low, style.high) for kind, style in STYLES.items()},
        "numbered": [kind.name for kind in NUMBERED],
        "names": {
            "kind": {k.value: k.name for k in Kind},
            "operation": {o.value: _words(o.name) for o in Operation if o},
            "axis": {a.value: a.name.lower() for a in Axis if a},
        },
    }
    title = Path(report["run"]["folder"]).resolve().name
    page = Template(_file("page.html")).substitute(
        title=escape(title),
        style=_file("page.css"),
        plan=escape(plan),
        missing="".join(f"<p class=missing>rank {escape(r)} is left out: {escape(why)}</p>" for r, why in report["run"]["missing"].items()),
        facts=facts(_head(report)),
        diagnosis=_diagnosis(report),
        merged=_merged(packed, chosen),
        tables=tables({key: value for key, value in report.items() if key not in ELSEWHERE}),
        run=_run(description),
        library=library,
        figure=_json(figure),
        events=_json(packed),
        script=_file("page.js"),
    )
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as e:
        raise PlanError(f"cannot write {path}: {e.strerror or e}") from None


def _library() -> str:
    """Bokeh's script; raises PlanError where it is not installed."""
    try:
        from bokeh.resources import Resources
    except ImportError as e:
        raise PlanError(f"--html draws with Bokeh, which is not installed here ({e}); pip install 'hpcpar[page]'") from None
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON inside a script element: nothing in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _head(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(words, name, (report.get(key) or {}).get(name)) for key, name, words in HEAD]
    return [(words, text(name, value)) for words, name, value in rows if value is not None]


def _diagnosis(report: Mapping[str, Any]) -> str:
    """The findings as a list, with a bar as long as the share of a step."""
    found = report.get("diagnosis") or []
    if not found:
        return "<p>Nothing costs more than 1 % of a step, or the trace has no whole step to tell.</p>"
    items = "".join(
        f"<li><b>{f['share']:.1%} of a step ({1e3 * f['seconds']:,.4g} ms)</b>: {escape(f['sentence'])}."
        f'<span class=bar style="width: {100 * min(1.0, f["share"]):.1f}%"></span>'
        f"<span class=set>What would change it: {escape(f['setting'])}.</span></li>"
        for f in found
    )
    return f"<ol>{items}</ol><p>Shares are of the mean step, as the rank that computes longest sees it; two of them can overlap.</p>"


def _merged(packed: Mapping[str, Any], chosen: tuple[int, int] | None) -> str:
    """What the page does not hold event by event."""
    events, rows = packed["events"], packed["rows"]
    if rows == events:
        return f"This page holds all {events:,} events of the run."
    words = "" if not chosen else f"step {chosen[0]}" if chosen[0] == chosen[1] else f"steps {chosen[0]} to {chosen[1]}"
    kept = f"{words} whole" if packed["kept"] and words else "no step whole"
    return (
        f"<b>The run has {events:,} events, more than this page holds one by one. It has {kept}; elsewhere the events of a lane "
        f"that begin within {packed['stretch'] / 1e6:.4g} ms are one.</b> --step N makes the page with step N whole."
    )


def _run(description: Mapping[str, Any]) -> str:
    """Configuration, hosts and what else the trace tells of its run."""
    import tomli_w

    rest = {key: value for key, value in description.items() if key not in ("config", "hosts")}
    parts = []
    hosts = description.get("hosts")
    if hosts:
        parts.append(
            grid([{"rank": rank, **host} if isinstance(host, Mapping) else {"rank": rank, "host": host} for rank, host in enumerate(hosts)])
        )
    for key, value in rest.items():
        rows = value.items() if isinstance(value, Mapping) else [(key, value)]
        parts.append(
            f"<h3>{escape(_words(key))}</h3>"
            + facts([(header(str(n)), text(str(n), x) if not isinstance(x, Mapping) else json.dumps(x)) for n, x in rows])
        )
    config = description.get("config")
    if config:
        parts.append(f"<details open><summary>configuration</summary><pre>{escape(tomli_w.dumps(_known(config)))}</pre></details>")
    return "\n".join(parts) or "<p>The trace holds no description of its run.</p>"


def _known(value: Any) -> Any:
    """Without None, which TOML has no word for."""
    if isinstance(value, Mapping):
        return {k: _known(v) for k, v in value.items() if v is not None}
    return [_known(v) for v in value] if isinstance(value, list | tuple) else value
