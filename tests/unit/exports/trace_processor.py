"""What Perfetto's trace processor makes of a trace, in small (its binary comes from the network at first use).

The bytes are parsed by the package's own protobuf classes. The rules are the processor's: packets are sorted by time, ties stay in the
order of the file; an end closes what is open on top of its track; a slice of known length that reaches beyond the one around it is dropped;
an arrow whose source was not seen before is dropped, and one points from the slice that began first to the other. Any such loss fails here.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    """One slice: where, when (ns), what."""

    process: str
    track: str
    start: int
    end: int
    name: str
    category: str
    args: dict[str, Any]
    depth: int = 0


@dataclass
class Read:
    """All slices, arrows (slice, slice), counters {(process, name): [(time, value)]} and units {name: unit}."""

    slices: list[Slice] = field(default_factory=list)
    arrows: list[tuple[Slice, Slice]] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)
    tracks: dict[str, list[str]] = field(default_factory=dict)  # of each process, in the order in which they are shown

    def of_events(self) -> list[Slice]:
        """The slices that stand for an event: all but those inside early receives."""
        return [s for s in self.slices if s.category != "under way"]


class Flows:
    """Arrows by number, from the slice that began first to the other."""

    def __init__(self, into: list[tuple[Slice, Slice]]):
        self.open: dict[int, Slice] = {}
        self.into = into

    def begin(self, number: int, at: Slice) -> None:
        assert number not in self.open, f"arrow {number} begins twice"
        self.open[number] = at

    def finish(self, number: int, at: Slice) -> None:
        assert number in self.open, f"arrow {number} ends before it begins"
        other = self.open.pop(number)
        self.into.append((other, at) if other.start <= at.start else (at, other))


def native(path: Path) -> Read:
    """Read a native trace."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    trace = proto.Trace()
    trace.ParseFromString(path.read_bytes())
    out = Read()
    flows = Flows(out.arrows)
    described: dict[int, Any] = {}
    texts: dict[tuple[int, str, int], str] = {}
    events = []
    cleared = set()
    for packet in trace.packet:
        of = packet.trusted_packet_sequence_id
        assert of > 0, "0 is no sequence"
        if packet.sequence_flags & proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            assert of not in cleared, "the texts of a sequence were cleared in its middle"
            cleared.add(of)
        assert of in cleared, "texts of a sequence that never began"
        for table in ("event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values"):
            for entry in getattr(packet.interned_data, table):
                assert (of, table, entry.iid) not in texts
                texts[of, table, entry.iid] = entry.str.decode() if table.endswith("values") else entry.name
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in described
            described[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            events.append((packet.timestamp, of, packet.track_event))
    for track in described.values():
        if track.HasField("process"):
            assert track.process.pid > 0
            out.processes.append(track.process.process_name)
    places = {}
    for uuid, track in described.items():
        if track.parent_uuid:
            parent = described[track.parent_uuid].process.process_name
            places[uuid] = (parent, track.name)
            assert track.sibling_order_rank == len(out.tracks.setdefault(parent, [])) + 1
            out.tracks[parent].append(track.name)
            if track.HasField("counter"):
                out.units[track.name] = track.counter.unit_name or proto.CounterDescriptor.Unit.Name(track.counter.unit)
    assert len(set(places.values())) == len(places), "two tracks of one name would be shown as one"
    stacks: dict[int, list[Slice]] = {}
    for time, of, event in sorted(events, key=lambda e: e[0]):
        stack = stacks.setdefault(event.track_uuid, [])
        process, track = places[event.track_uuid]
        if event.type == event.TYPE_COUNTER:
            out.counters.setdefault((process, track), []).append((time, event.counter_value))
            continue
        if event.type == event.TYPE_SLICE_BEGIN:
            args = {}
            for note in event.debug_annotations:
                text = note.HasField("string_value_iid")
                value = texts[of, "debug_annotation_string_values", note.string_value_iid] if text else note.int_value
                args[texts[of, "debug_annotation_names", note.name_iid]] = value
            name, (group,) = texts[of, "event_names", event.name_iid], event.category_iids
            at = Slice(process, track, time, -1, name, texts[of, "event_categories", group], args, len(stack))
            stack.append(at)
            out.slices.append(at)
        else:
            assert event.type == event.TYPE_SLICE_END and stack, "an end without a begin"
            at = stack.pop()
            at.end = time
        for number in event.flow_ids:
            flows.begin(number, at)
        for number in event.terminating_flow_ids:
            flows.finish(number, at)
    assert not any(stacks.values()), "slices that never end"
    assert not flows.open, "arrows that go nowhere"
    return out


def chrome(path: Path) -> Read:
    """Read Chrome JSON."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    entries = json.loads(text)["traceEvents"]
    out = Read()
    flows = Flows(out.arrows)
    processes = {e["pid"]: e["args"]["name"] for e in entries if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {e["tid"]: e["args"]["name"] for e in entries if e["ph"] == "M" and e["name"] == "thread_name"}
    assert not set(threads) & set(processes), "a thread with the number of a process is its main thread"
    assert len({e["tid"] for e in entries if "tid" in e}) == len({(e["pid"], e["tid"]) for e in entries if "tid" in e})
    order = {e["pid"]: e["args"]["sort_index"] for e in entries if e["name"] == "process_sort_index"}
    out.processes = [processes[pid] for pid in sorted(order, key=lambda pid: order[pid])]

    def ns(us: float) -> int:
        assert abs(us * 1000 - round(us * 1000)) < 1e-3, f"{us} us is no whole number of ns"
        return round(us * 1000)

    stacks: dict[int, list[Slice]] = {}
    for e in sorted((e for e in entries if e["ph"] != "M"), key=lambda e: ns(e["ts"])):
        time, process = ns(e["ts"]), processes[e["pid"]]
        if e["ph"] == "C":
            ((unit, value),) = e["args"].items()
            out.units[e["name"]] = unit
            out.counters.setdefault((process, e["name"]), []).append((time, value))
            continue
        stack = stacks.setdefault(e["tid"], [])
        while stack and (stack[-1].end <= time if e["ph"] == "X" else stack[-1].end < time):
            stack.pop()
        if e["ph"] == "X":
            at = Slice(process, threads[e["tid"]], time, time + ns(e["dur"]), e["name"], e["cat"], e.get("args", {}), len(stack))
            assert not stack or at.end <= stack[-1].end, f"{at} would be dropped: it reaches beyond {stack[-1]}"
            stack.append(at)
            out.slices.append(at)
            continue
        assert stack, "an arrow outside of any slice"
        if e["ph"] == "s":
            flows.begin(e["id"], stack[-1])
        else:
            assert e["ph"] == "f" and e["bp"] == "e"
            flows.finish(e["id"], stack[-1])
    assert not flows.open
    return out
