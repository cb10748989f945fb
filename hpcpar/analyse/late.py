"""What ranks waited because another came late, and who that was; and who enters collectives last.

    late sender      send          |---         wait for the receive  |+++++:---|      + late: until the send was posted
                     receive  |------------|                                            - transfer: the rest of the wait
    late receiver    receive       |---         the same for a wait for a send
    straggler        the rank that enters a collective last, and what all others waited until then

Late Sender, Late Receiver and Wait at N x N of Scalasca; a wait that began when the partner was there already is all transfer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.analyse.calls import grouped
from hpcpar.analyse.exchange import OPERATIONS
from hpcpar.analyse.exchanges import Exchanges
from hpcpar.analyse.volumes import name
from hpcpar.trace.schema import Axis, Kind, Operation


def waiting(found: Exchanges, steps: int) -> dict[str, Any] | None:
    """s a step, summed over ranks: `late_sender_s`, `late_receiver_s`, `late_collective_s`, of these `late_experts_s` in exchanges of
    experts, `transfer_s`, `unknown_s`; `operations`, a row of kind, operation, axis, waited_s and `pairs`, a row for each waiting rank and
    whom it waited for, both with the longest first; `stragglers`, a row a rank; None without a measured step.
    """
    if not found.time.total:
        return None
    waited, late, known = found.waited, found.late, found.cause >= 0
    kinds = {"late_sender": Kind.RECEIVE, "late_receiver": Kind.SEND, "late_collective": Kind.COLLECTIVE}
    per = 1e9 * steps
    return {
        **{f"{name}_s": float(late[known & (found.calls["kind"] == kind)].sum()) / per for name, kind in kinds.items()},
        "late_experts_s": float(late[known & np.isin(found.calls["operation"], OPERATIONS)].sum()) / per,
        "transfer_s": float(waited[known].sum() - late[known].sum()) / per,
        "unknown_s": found.unknown_s() / steps,
        "operations": _operations(found, waited, per),
        "pairs": _pairs(found, waited, late, per),
        "stragglers": stragglers(found, late, per),
    }


def _operations(found: Exchanges, waited: np.ndarray, per: float) -> list[dict[str, Any]]:
    """What was waited for, whether its partners are known or not."""
    chosen = np.flatnonzero(waited)
    kind, operation, axis = (found.calls[field][chosen] for field in ("kind", "operation", "axis"))
    keys, which = grouped(kind == Kind.COLLECTIVE, operation, axis)
    total = np.bincount(which, waited[chosen], len(keys))
    rows = [
        {
            "kind": "collective" if collective else "message",
            "operation": name(Operation, operation),
            "axis": name(Axis, axis),
            "waited_s": float(s) / per,
        }
        for (collective, operation, axis), s in zip(keys, total, strict=True)
    ]
    return sorted(rows, key=lambda row: -row["waited_s"])


def _pairs(found: Exchanges, waited: np.ndarray, late: np.ndarray, per: float) -> list[dict[str, Any]]:
    """rank, waits_for, kind (late_sender or late_receiver), waits, late_s, transfer_s."""
    message = np.flatnonzero((found.cause >= 0) & (found.calls["kind"] != Kind.COLLECTIVE) & (waited > 0))
    keys, which = grouped(found.calls["rank"][message], found.cause[message], found.calls["kind"][message] == Kind.RECEIVE)
    count = np.bincount(which)
    slow, moved = np.bincount(which, late[message]), np.bincount(which, waited[message] - late[message])
    rows = [
        {
            "rank": r,
            "waits_for": other,
            "kind": "late_sender" if receive else "late_receiver",
            "waits": int(count[i]),
            "late_s": float(slow[i]) / per,
            "transfer_s": float(moved[i]) / per,
        }
        for i, (r, other, receive) in enumerate(keys)
    ]
    return sorted(rows, key=lambda row: -row["late_s"])


def stragglers(found: Exchanges, late: np.ndarray, per: float) -> list[dict[str, Any]]:
    """For each rank: `rank`, `collectives` that it entered in the measured steps, `last` of them after all others, `share` = last /
    collectives, `caused_s` a step that all others waited for it, and `ahead_s`, how much later than the first it then came, on average.
    """
    calls, time = found.calls, found.time
    at = np.flatnonzero((calls["kind"] == Kind.COLLECTIVE) & (found.instance >= 0))
    came = time.at(found.came[at])
    at = at[(came > 0) & (came < time.total)]
    size = int(max(found.ranks, default=-1)) + 1
    if not len(at):
        return []
    entered = np.bincount(calls["rank"][at], minlength=size)
    earliest = np.full(len(found.size), np.iinfo(np.int64).max)
    np.minimum.at(earliest, found.instance[at], calls["start"][at])
    last = at[(found.cause[at] == calls["rank"][at]) & (found.came[at] > earliest[found.instance[at]])]
    lasts = np.bincount(calls["rank"][last], minlength=size)
    ahead = np.bincount(calls["rank"][last], calls["start"][last] - earliest[found.instance[last]], minlength=size)
    caused = np.bincount(found.cause[at], late[at], minlength=size)
    return [
        {
            "rank": r,
            "collectives": int(entered[r]),
            "last": int(lasts[r]),
            "share": float(lasts[r] / entered[r]) if entered[r] else None,
            "caused_s": float(caused[r]) / per,
            "ahead_s": float(ahead[r] / lasts[r]) / 1e9 if lasts[r] else None,
        }
        for r in found.ranks
    ]
