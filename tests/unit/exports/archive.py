"""An OTF2 archive read back with the package otf2: regions, messages, collectives, one-sided calls and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Archive:
    """Times in ns; a location is called `rank 3`, or `rank 3, copies`."""

    locations: dict[str, str] = field(default_factory=dict)  # name -> name of its process
    regions: list[tuple[Any, ...]] = field(default_factory=list)  # location, start, end, name, attributes
    messages: list[tuple[Any, ...]] = field(default_factory=list)  # source, destination, sent, left, posted, received, bytes
    collectives: list[tuple[Any, ...]] = field(default_factory=list)  # location, start, end, operation, members, bytes
    one_sided: list[tuple[Any, ...]] = field(default_factory=list)  # location, start, end, put or get, peer, bytes
    metrics: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    alone: int = 0  # ends of messages without the other one


def read(folder: Path) -> Archive:
    """Read `folder`/trace.otf2; fails where records are not in time, regions do not nest or a request never ends."""
    import otf2
    from otf2 import events as e

    out = Archive()
    last: dict[str, int] = {}
    stacks: dict[str, list[Any]] = {}
    requests: dict[tuple[str, int], Any] = {}
    sends: dict[tuple[int, int, int], list[Any]] = {}  # (source, destination, tag) -> in the order in which they were posted
    receives: dict[tuple[int, int, int], list[Any]] = {}
    with otf2.reader.open(str(folder / "trace.otf2")) as trace:
        assert trace.timer_resolution == 10**9
        out.locations = {loc.name: loc.group.name for loc in trace.definitions.locations}
        for location, event in trace.events:
            name, time = location.name, event.time
            assert time >= last.get(name, 0), f"{name} goes back in time"
            last[name] = time
            begun = requests.pop((name, event.request_id), None) if ending(event) else None
            if isinstance(event, e.Enter):
                stacks.setdefault(name, []).append(event)
            elif isinstance(event, e.Leave):
                began = stacks[name].pop()
                assert began.region is event.region, "another region is left than was entered last"
                attributes = {a.name: v for a, v in began.attributes.items()}
                out.regions.append((name, began.time, time, event.region.name, attributes))
            elif isinstance(event, e.Metric):
                out.metrics.setdefault((name, event.metric.member.name), []).append((time, event.values[0]))
            elif isinstance(event, e.MpiIsend):
                me = event.communicator.rank(location)
                sends.setdefault((me, event.receiver, event.msg_tag), []).append(event)
                requests[name, event.request_id] = event
            elif isinstance(event, e.MpiIsendComplete):
                begun.left = time
            elif isinstance(event, e.MpiIrecv):
                event.posted = begun.time
                me = event.communicator.rank(location)
                receives.setdefault((event.sender, me, event.msg_tag), []).append(event)
            elif isinstance(event, e.NonBlockingCollectiveComplete):
                members = [m.name for m in event.communicator.group.members]
                called = str(event.collective_op).rpartition(".")[2]
                assert event.size_sent == event.size_received and event.root == otf2.Undefined.UINT32.value
                out.collectives.append((name, begun.time, time, called, members, event.size_sent))
            elif isinstance(event, e.RmaPut | e.RmaGet):
                requests[name, -event.matching_id - 1] = event
            elif isinstance(event, e.RmaOpCompleteNonBlocking):
                begun = requests.pop((name, -event.matching_id - 1))
                called = "put" if isinstance(begun, e.RmaPut) else "get"
                out.one_sided.append((name, begun.time, time, called, begun.remote, begun.bytes))
            else:
                assert isinstance(event, e.MpiIrecvRequest | e.NonBlockingCollectiveRequest), type(event)
                requests[name, event.request_id] = event
    assert not requests and not any(stacks.values())
    for channel in set(sends) | set(receives):
        both = sends.get(channel, []), sorted(receives.get(channel, []), key=lambda r: r.posted)
        out.alone += abs(len(both[0]) - len(both[1]))
        for s, r in zip(*both, strict=False):
            assert s.msg_length == r.msg_length
            out.messages.append((*channel[:2], s.time, s.left, r.posted, r.time, s.msg_length))
    return out


def ending(event: Any) -> bool:
    """Whether an event ends a request."""
    return type(event).__name__ in ("MpiIsendComplete", "MpiIrecv", "NonBlockingCollectiveComplete")
