"""A schedule as text: a row a rank, time to the right, for a terminal of 80 columns.

    0 |F0 F1 B0--- B1--- .. an action fills its time: its name, then dashes; dots are idle

What is wider than the terminal is folded; what would need more than MAX_BLOCKS folds is scaled: then a column is a stretch of time and
shows what fills most of it.
"""

from __future__ import annotations

import textwrap
from fractions import Fraction
from math import ceil

from hpcpar.schedule.action import Action, Kind
from hpcpar.schedule.clock import Timing
from hpcpar.schedule.lifetimes import Lifetimes

MAX_BLOCKS = 6
Row = list[tuple[Action, float, float]]  # what takes time, with its start and end


def picture(timing: Timing, width: int = 80) -> str:
    """The rows of a timing, folded or scaled to `width` columns."""
    schedule = timing.program.schedule
    origin = min(a for a, _ in timing.spans)
    span = timing.makespan
    rows = [[(a, s - origin, e - origin) for a, s, e in timing.compute(r) if e > s] for r in range(len(schedule.ranks))]
    if not span:
        return "nothing takes time"
    margin = len(str(len(rows) - 1)) + 2
    several = any(len(schedule.stages_of(r)) > 1 for r in range(len(rows)))
    columns, unit = _columns(rows, several)
    room = max(unit, (width - margin) // unit * unit)
    total = _at(span, columns)
    if total > MAX_BLOCKS * room or unit > width - margin:
        return _scaled(rows, span, width - margin)
    lines = [_line(row, columns, total, several) for row in rows]
    blocks = []
    for start in range(0, total, room):
        if total > room:
            blocks.append(f"from {_number(start / columns)}")
        blocks += [f"{r:>{margin - 2}} |{line[start : start + room].rstrip()}" for r, line in enumerate(lines)]
    return "\n".join(blocks)


def summary(timing: Timing, lifetimes: list[Lifetimes], steady: float | None = None, width: int = 80) -> str:
    """Cost, both bubbles and the peaks of each rank, labelled."""
    head = f"cost {_number(timing.cost)}, work {_number(timing.work)}, makespan {_number(timing.makespan)}; "
    head += f"bubble {timing.bubble_total:.4f} of the total, {timing.bubble_ideal:.4f} of the ideal"
    if steady is not None:
        head += f", {steady:.4f} of the total in the steady state"
    parts = [head]
    for name, values in (
        ("stash", [x.peak_stash for x in lifetimes]),
        ("held for W", [x.peak_held for x in lifetimes]),
        ("weight versions", [x.weight_versions for x in lifetimes]),
        ("gradient buffers", [x.gradient_buffers for x in lifetimes]),
    ):
        if name == "stash" or any(v != values[0] for v in values) or values[0] > (0 if name == "held for W" else 1):
            parts.append(f"peak {name}, by rank: {' '.join(_number(v) for v in values)}")
    return "\n".join(line for part in parts for line in textwrap.wrap(part, width, subsequent_indent="  "))


def _columns(rows: list[Row], several: bool) -> tuple[float, int]:
    """(columns of one unit of time, columns of the shortest action), so that every action has room for its name."""
    shortest = min(e - s for row in rows for _, s, e in row)
    need = max((len(_name(a, several)) + 1) / (e - s) for row in rows for a, s, e in row)
    unit = ceil(round(need * shortest, 6))
    return unit / shortest, unit


def _line(row: Row, columns: float, total: int, several: bool) -> str:
    out, at = [], 0
    for a, s, e in row:
        left, right = _at(s, columns), _at(e, columns)
        out.append(_cell("", ".", left - at))
        out.append(_cell(_name(a, several), "-", right - left))
        at = right
    return "".join(out) + _cell("", ".", total - at)


def _cell(name: str, fill: str, width: int) -> str:
    """A name and its filling, with a blank at the end."""
    return (name.ljust(width - 1, fill) + " ")[:width] if width > 0 else ""


def _name(a: Action, several: bool) -> str:
    word = str(a)
    return word if several else word[len(str(a.stage)) :]


def _at(time: float, columns: float) -> int:
    return round(time * columns)


def _scaled(rows: list[Row], span: float, columns: int) -> str:
    """One letter a column: what fills most of its stretch of time."""
    step = span / columns
    margin = len(str(len(rows) - 1))
    lines = []
    for r, row in enumerate(rows):
        filled: list[dict[str, float]] = [{} for _ in range(columns)]
        for a, s, e in row:
            for c in range(max(0, int(s / step)), min(columns, ceil(e / step))):
                part = min(e, (c + 1) * step) - max(s, c * step)
                filled[c][a.kind.value] = filled[c].get(a.kind.value, 0.0) + part
        lines.append(f"{r:>{margin}} |{''.join(_most(f, step) for f in filled)}")
    kinds = [k.value for k in (Kind.F, Kind.I, Kind.W, Kind.B, Kind.U) if any(a.kind is k for row in rows for a, _, _ in row)]
    legend = f"a column is {_number(step)} of time and shows what fills most of it: {' '.join(kinds)}, or . for idle"
    lines += textwrap.wrap(legend, columns + margin + 2, subsequent_indent="  ")
    return "\n".join(lines)


def _most(filled: dict[str, float], step: float) -> str:
    idle = step - sum(filled.values())
    best = max(filled, key=lambda k: filled[k]) if filled else "."
    return best if filled and filled[best] >= idle else "."


def _number(x: float | Fraction) -> str:
    return f"{float(x):.6g}"
