"""Where the ranks' time went, in the factors of the POP centre: each is 1 where nothing is lost, and each is the product of those below it.

    parallel efficiency      = mean(useful) / runtime          = load balance x communication
      load balance           = mean(useful) / max(useful)
      communication          = max(useful) / runtime           = serialisation x transfer
        serialisation        = max(useful) / ideal             lost in waiting for each other, whatever the network
        transfer             = ideal / runtime                 lost in moving data

runtime: the measured steps; useful of a rank: what of them it neither communicates, nor waits, nor has ended; ideal: their time on a
network without latency and with infinite bandwidth (replay.py). `computing`: what of the useful time is compute, and not between actions.
Rosas, Gimenez, Labarta 2014, Scalability prediction for fundamental performance factors; pop-coe.eu.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse.exchanges import Exchanges
from hpcpar.analyse.replay import replay
from hpcpar.trace import Trace

UNKNOWN = 0.01  # of all waiting; where more of it has no known cause, the ideal time would be a guess


def efficiencies(trace: Trace, found: Exchanges) -> dict[str, Any] | None:
    """The factors, `useful_s` {mean, most, rank}, `runtime_s`, `ideal_s`, `unknown` (the share of the waiting whose cause is not known) and
    `why` serialisation and transfer are None, if they are; None without a measured step."""
    if not found.time.total or not len(found.ranks):
        return None
    runtime, useful = found.time.total / 1e9, useful_s(found)
    mean, most = float(useful.mean()), float(useful.max())
    if not most:
        return None
    unknown, waited = found.unknown_s(), _waited_s(found)
    share = unknown / waited if waited else 0.0
    why = None
    if trace.missing:
        why = f"{len(trace.missing)} of {trace.ranks} ranks are missing"
    elif share > UNKNOWN:
        why = f"for {share:.0%} of the waiting the trace does not tell who was waited for"
    ideal = None if why else replay(found)
    if ideal is None and why is None:
        why = "the calls wait for each other in a circle: the trace is cut, or its clocks are wrong"
    return {
        "parallel": mean / runtime,
        "load_balance": mean / most,
        "communication": most / runtime,
        "serialisation": most / ideal if ideal else None,
        "transfer": ideal / runtime if ideal else None,
        "computing": float(found.computed.sum() / 1e9 / useful.sum()),
        "useful_s": {"mean": mean, "most": most, "rank": int(found.ranks[int(useful.argmax())])},
        "runtime_s": runtime,
        "ideal_s": ideal,
        "unknown": share,
        "why": why,
    }


def useful_s(found: Exchanges) -> np.ndarray:
    """(r,) s of the measured steps, from a rank's first event to its last, in which it neither communicates nor waits."""
    out = np.empty(len(found.ranks))
    for i, (low, high) in enumerate(found.bounds):
        still = found.time.cut(found.busy[i])
        out[i] = found.time.at(high) - found.time.at(low) - (still[:, 1] - still[:, 0]).sum()
    return out / 1e9


def _waited_s(found: Exchanges) -> float:
    return float(found.waited.sum()) / 1e9 + found.unknown_s() - float(found.waited[found.cause < 0].sum()) / 1e9
