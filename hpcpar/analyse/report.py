"""Everything that is measured from a trace, as one dict of plain numbers, lists and names: what `hpcpar analyse --json` prints.

    run          folder, ranks, missing {rank: why}, gaps [line], hosts, plan, versions
    clocks       what was checked, how far they may be wrong, what was put right                     hpcpar/trace/clocks.py
    steps        count, first, last, warm_up, resumed, mean_s, min_s, max_s, std_s                   steps.py
    throughput   tokens_per_s, flops_per_s, fraction, ...                                            throughput.py
    shares       a row a rank                                                                        shares.py
    overlap      a row a rank                                                                        overlap.py
    workers      a row a rank: steps by its own clock, waits, staleness                              workers.py
    bubble       measured, clock, closed_form                                                        bubble.py
    volumes      operations, pairs                                                                   volumes.py
    experts      a row a block with experts: spread of tokens, drops, entropy, auxiliary losses      experts.py
    exchange     all-to-all of experts: share of the steps, bytes by pair, the slowest pair          exchange.py
    memory       peaks in bytes, a row a rank; memory_over_time by kind                              memory.py
    efficiency   the factors of POP                                                                  pop.py
    waiting      late senders and receivers by pair, stragglers at collectives                       late.py
    critical_path  its parts, ranks                                                                  critical.py
    bandwidth    achieved, by operation and by pair                                                  bandwidth.py
    diagnosis    what costs most and what would change it, the costliest first                       diagnosis.py

docs/measures.md has the formula of each. What a trace does not hold is None or an empty list, never zero.
"""

from __future__ import annotations

from typing import Any

from hpcpar.analyse.bandwidth import bandwidth
from hpcpar.analyse.bubble import bubble
from hpcpar.analyse.critical import critical_path
from hpcpar.analyse.diagnosis import diagnosis
from hpcpar.analyse.exchange import exchange
from hpcpar.analyse.exchanges import exchanges
from hpcpar.analyse.experts import experts
from hpcpar.analyse.gaps import gaps
from hpcpar.analyse.late import waiting
from hpcpar.analyse.memory import over_time, peaks
from hpcpar.analyse.overlap import overlap
from hpcpar.analyse.pop import efficiencies
from hpcpar.analyse.shares import shares
from hpcpar.analyse.steps import steps, summary
from hpcpar.analyse.throughput import throughput
from hpcpar.analyse.volumes import volumes
from hpcpar.analyse.workers import workers
from hpcpar.trace import Trace


def report(trace: Trace, peak: float | None = None) -> dict[str, Any]:
    """All measures of a trace, as far as its files go; `peak` is the arithmetic in FLOP/s that one rank's device can do, if it is known."""
    found = steps(trace)
    moved = exchanges(trace, found)
    out = {
        "run": {
            "folder": str(trace.folder),
            "ranks": trace.ranks,
            "missing": {str(rank): why for rank, why in trace.missing.items()},
            "gaps": gaps(trace, found),
            "hosts": trace.description.get("hosts"),
            "model": (trace.description.get("config") or {}).get("model"),
            "plan": (trace.description.get("config") or {}).get("plan"),
            "versions": trace.description.get("versions"),
        },
        "clocks": trace.clocks,
        "steps": summary(found),
        "throughput": throughput(trace, found, peak),
        "shares": shares(trace, found),
        "overlap": overlap(trace, found),
        "workers": workers(trace),
        "bubble": bubble(trace, found),
        "volumes": volumes(trace, found),
        "experts": experts(trace),
        "exchange": exchange(trace, found),
        "memory": peaks(trace),
        "memory_over_time": over_time(trace, found),
        "efficiency": efficiencies(trace, moved),
        "waiting": waiting(moved, int(found.measured.sum())),
        "critical_path": critical_path(trace, moved),
        "bandwidth": bandwidth(moved),
    }
    return {**out, "diagnosis": diagnosis(out)}
