"""What an event is called in another tool, and what is said beside it.

2F5                         compute: stage, kind, microbatch, as a schedule writes it
send activation 5 to 3      a message; receives say from whom, waits for what
allreduce dp                a collective
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from hpcpar.trace.schema import COMPUTE, ENUMS, EVENT, Kind

UNDER_WAY = "under way"  # of a receive that was posted early: from the send on
BLOCK = 4096  # events that stand in memory as Python objects
ARGUMENTS = ("stage", "microbatch", "version", "step", "peer", "bytes", "sequence")
CATEGORIES = {int(kind): "compute" if kind in COMPUTE else kind.name.lower() for kind in Kind}
TOWARDS = {int(Kind.SEND): "to", int(Kind.RECEIVE): "from"}


@cache
def word(field: str, value: int) -> str:
    """The name of an enum value in lower case, F, I, W and B as they are; a number that this version does not know stays one."""
    try:
        called = ENUMS[field](value).name
    except ValueError:
        return str(value)
    return called if len(called) == 1 else called.lower()


def category(kind: int) -> str:
    """`compute`, `wait`, `send`, `receive`, `collective`, `copy`, `io`, `checkpoint`."""
    return CATEGORIES.get(kind, "other")


def name(event: Mapping[str, Any]) -> str:
    """The name of an event, given its fields by name."""
    kind = event["kind"]
    number = str(event["microbatch"]) if event["microbatch"] >= 0 else ""
    if kind in COMPUTE and len(Kind(kind).name) == 1:
        return f"{event['stage'] if event['stage'] >= 0 else ''}{Kind(kind).name}{number}"
    words = [word("kind", kind)] if kind != Kind.COLLECTIVE or not event["operation"] else []
    words += [word(field, event[field]) for field in ("operation", "axis") if event[field] and (field != "axis" or kind == Kind.COLLECTIVE)]
    words += [number] if number else []
    words += [TOWARDS[kind], str(event["peer"])] if kind in TOWARDS and event["peer"] >= 0 else []
    return " ".join(words)


def arguments(event: Mapping[str, Any]) -> dict[str, int | str]:
    """What has a meaning for an event, by the name of its field."""
    out: dict[str, int | str] = {"kind": word("kind", event["kind"])}
    for field in ("operation", "axis"):
        if event[field]:
            out[field] = word(field, event[field])
    for field in ARGUMENTS:
        if event[field] >= 0 and (field != "bytes" or event[field] > 0 or event["operation"]):
            out[field] = event[field]
    return out


def fields(events: np.ndarray) -> Iterator[dict[str, int]]:
    """Each event (n,) EVENT as its fields by name, in plain integers."""
    names = EVENT.names or ()
    for first in range(0, len(events), BLOCK):
        block = events[first : first + BLOCK]
        for row in zip(*(block[n].tolist() for n in names), strict=True):
            yield dict(zip(names, row, strict=True))


def process(description: Mapping[str, Any], rank: int) -> str:
    """`rank 3 on node7`; without a host where the description has none."""
    hosts = description.get("hosts") or []
    host = hosts[rank] if rank < len(hosts) else None
    return f"rank {rank} on {host['name']}" if isinstance(host, dict) and host.get("name") else f"rank {rank}"
