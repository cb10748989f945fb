"""Everything that is measured from a trace, as one dict of plain numbers, lists and names: what `hpcpar analyse --json` prints.

    run          folder, ranks, missing {rank: why}, hosts, plan, versions
    steps        count, first, last, warm_up, mean_s, min_s, max_s, std_s                            steps.py
    throughput   tokens_per_s, flops_per_s, fraction, ...                                            throughput.py
    shares       a row a rank                                                                        shares.py
    overlap      a row a rank                                                                        overlap.py
    workers      a row a rank: steps by its own clock, waits, staleness                              workers.py
    bubble       measured, clock, closed_form                                                        bubble.py
    volumes      operations, pairs                                                                   volumes.py
    memory       peaks in bytes, a row a rank                                                        memory.py

What a trace does not hold is None or an empty list, never zero.
"""

from __future__ import annotations

from typing import Any

from hpcpar.analyse.bubble import bubble
from hpcpar.analyse.memory import peaks
from hpcpar.analyse.overlap import overlap
from hpcpar.analyse.shares import shares
from hpcpar.analyse.steps import steps, summary
from hpcpar.analyse.throughput import throughput
from hpcpar.analyse.volumes import volumes
from hpcpar.analyse.workers import workers
from hpcpar.trace import Trace


def report(trace: Trace) -> dict[str, Any]:
    """All measures of a trace, as far as its files go."""
    found = steps(trace)
    return {
        "run": {
            "folder": str(trace.folder),
            "ranks": trace.ranks,
            "missing": {str(rank): why for rank, why in trace.missing.items()},
            "hosts": trace.description.get("hosts"),
            "plan": (trace.description.get("config") or {}).get("plan"),
            "versions": trace.description.get("versions"),
        },
        "steps": summary(found),
        "throughput": throughput(trace, found),
        "shares": shares(trace, found),
        "overlap": overlap(trace, found),
        "workers": workers(trace),
        "bubble": bubble(trace, found),
        "volumes": volumes(trace, found),
        "memory": peaks(trace),
    }
