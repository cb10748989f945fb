"""Which format a file asks for."""

from __future__ import annotations

from pathlib import Path

from hpcpar.draw.exports import chrome, events, otf2_archive, perfetto
from hpcpar.errors import PlanError
from hpcpar.trace import Trace

TIMELINES = {".pftrace": perfetto.save, ".perfetto-trace": perfetto.save, ".json": chrome.save, ".json.gz": chrome.save}


def timeline(trace: Trace, path: str | Path) -> str:
    """Write a timeline for Perfetto, native or Chrome JSON by the ending; returns what was done. Raises PlanError for another ending."""
    name = Path(path).name
    for ending, save in TIMELINES.items():
        if name.endswith(ending):
            return save(trace, path)
    raise PlanError(f"--perfetto {path}: the ending is not known; use one of {', '.join(TIMELINES)}")


EXPORTS = {"perfetto": timeline, "otf2": otf2_archive.save, "events": events.save}  # by option of `hpcpar analyse`
