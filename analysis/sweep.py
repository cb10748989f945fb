"""The runs of a sweep in one table: what differs between them, ranks, speed, and how well more ranks were used.

    python analysis/sweep.py runs/first            the folder of `hpcpar submit --sweep`, or any folder of runs
    python analysis/sweep.py runs/first --csv F    the same as CSV

efficiency = tokens/s a rank over that of the run with the fewest ranks. A run without an end is listed with what it has.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError
from hpcpar.launch.jobs import last_line, runs

COLUMNS = ("ranks", "steps", "tokens_per_s", "efficiency", "loss", "held_out_loss")
NOT_COMPARED = ("run.",)  # how it was carried out, not what was run


def rows(top: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The settings that differ and a row a run; raises PlanError where there is none."""
    found = [(folder, settings) for folder in runs(top) if (settings := _settings(folder))]
    if not found:
        raise PlanError(f"no run under {top}; name the folder of `hpcpar submit --sweep`")
    keys = list(dict.fromkeys(k for _, settings in found for k in settings if not k.startswith(NOT_COMPARED)))
    differing = [k for k in keys if len({json.dumps(s.get(k)) for _, s in found}) > 1]
    table = [{**{k: s.get(k) for k in differing}, **_measured(folder, s)} for folder, s in found]
    table.sort(key=lambda row: row["ranks"])
    speeds = [row["tokens_per_s"] / row["ranks"] for row in table if row["tokens_per_s"]]
    for row in table:
        row["efficiency"] = row["tokens_per_s"] / row["ranks"] / speeds[0] if row["tokens_per_s"] else None
    return differing, table


def _settings(folder: Path) -> dict[str, Any]:
    """The description of a run as {table.key: value}; {} where there is none."""
    for name in ("config.toml", "submitted.toml"):
        if (folder / name).exists():
            return dict(_flat(tomllib.loads((folder / name).read_text())))
    return {}


def _flat(tables: dict[str, Any], place: str = "") -> Any:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _measured(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What a run left of its end, or of its last step."""
    last = last_line(folder / "metrics.jsonl")
    summary = json.loads((folder / "summary.json").read_text()) if (folder / "summary.json").exists() else {}
    of = {k: settings.get(f"plan.{k}", 1) for k in ("dp", "pp", "cp", "tp")}
    replicas = settings.get("plan.replicas")
    ranks = (sum(replicas) if replicas else of["dp"] * of["pp"]) * of["cp"] * of["tp"]
    return {
        "ranks": ranks,
        "steps": last.get("step", 0),
        "tokens_per_s": summary.get("tokens_per_s"),
        "loss": last.get("loss"),
        "held_out_loss": summary.get("held_out_loss"),
    }


def main() -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, metavar="F")
    args = parser.parse_args()
    try:
        differing, table = rows(args.folder)
    except PlanError as e:
        print(f"hpcpar: {e}", file=sys.stderr)
        return 2
    columns = [*differing, *COLUMNS]
    if args.csv:
        with args.csv.open("w", newline="") as f:
            writer = csv.DictWriter(f, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        return 0
    from rich import box
    from rich.console import Console
    from rich.table import Table

    out = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in table:
        out.add_row(*(_text(row[c]) for c in columns))
    Console(highlight=False, markup=False).print(out)
    return 0


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
