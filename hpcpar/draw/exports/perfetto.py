"""A trace as a native Perfetto trace: a process a rank, a track a lane, arrows from sends to receives, counters.

    rank 0 on node7                 a process
      receives, receives 2          tracks: slices of one track nest or are disjoint
      compute, waits, collectives, sends, copies, files
      memory stash                  counters
      messages on the way

Packets go to the file as they are made, a sequence a rank: names are written once in each (interned) and numbers afterwards.
https://perfetto.dev/docs/reference/synthetic-track-event
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.draw.exports.arrows import Arrowed, Arrows
from hpcpar.draw.exports.counters import counters
from hpcpar.draw.exports.lanes import edges, lanes, times
from hpcpar.draw.exports.slices import UNDER_WAY, arguments, category, fields, name, process
from hpcpar.draw.exports.whole_file import whole_file
from hpcpar.errors import PlanError
from hpcpar.trace import Trace


def save(trace: Trace, path: str | Path) -> str:
    """Write every readable rank to `path`, times in ns since the run's first event; returns what was done.

    Raises PlanError where the package `perfetto` is missing or the file cannot be written.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
    except ImportError:
        raise PlanError("a native Perfetto trace needs its package; pip install 'hpcpar[exports]', or write a .json") from None
    arrows, count = Arrowed(trace), 0
    with whole_file(path) as fresh, open(fresh, "wb") as file:
        first = origin(trace)
        for rank in range(trace.ranks):
            rows = _Rank(proto, file, rank, first)
            if rank in trace.missing:
                rows.describe(f"rank {rank}: {trace.missing[rank]}")
                continue
            rows.describe(process(trace.description, rank))
            count += rows.slices(trace.events(rank), arrows.of(rank))
            rows.counters(trace.events(rank), trace.memory(rank))
    return f"{count} events of {len(trace.present)} ranks are in {path}; {arrows.said}"


def origin(trace: Trace) -> int:
    """The start of the first event or the first memory sample of any readable rank, in ns."""
    starts = []
    for rank in trace.present:
        starts += [rows[field].min() for rows, field in ((trace.events(rank), "start"), (trace.memory(rank), "time")) if len(rows)]
    return int(min(starts, default=0))


class _Rank:
    """The packets of one rank, written as they are made."""

    def __init__(self, proto: Any, file: Any, rank: int, first: int):
        self._proto, self._file, self._rank, self._first = proto, file, rank, first
        self._event = proto.TrackEvent
        self._process = self._tracks = (rank + 1) << 20  # numbers of this rank's tracks follow that of its process
        self._known: dict[tuple[str, str], int] = {}  # what was interned: (table, text) -> number

    def describe(self, called: str) -> None:
        """The process; it opens the sequence."""
        packet = self._packet()
        packet.sequence_flags = self._proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.first_packet_on_sequence = True
        track = packet.track_descriptor
        track.uuid, track.child_ordering = self._process, self._proto.TrackDescriptor.EXPLICIT
        track.process.pid = self._rank + 1  # 0 is the idle process
        track.process.process_name, track.process.legacy_sort_index = called, self._rank
        self._write(packet)

    def slices(self, events: np.ndarray, arrows: Arrows) -> int:
        """A track a lane; returns the number of events."""
        for lane in lanes(events):
            rows, uuid = fields(events[lane.rows]), self._track(lane.name)
            start, end = times(events[lane.rows])
            for time, begins, i in edges(start, end):
                row = int(lane.rows[i])
                number, sent = arrows.into.get(row, (0, 0))
                early = number and sent > start[i]  # the receive was posted before the message was sent
                if begins:
                    values = next(rows)
                    packet = self._slice(uuid, time, name(values), category(values["kind"]))
                    self._annotate(packet, arguments(values))
                    if row in arrows.out:
                        packet.track_event.flow_ids.append(arrows.out[row])
                    self._write(packet)
                    continue
                if early:
                    self._write(self._slice(uuid, sent, UNDER_WAY, UNDER_WAY))
                # The arrow ends with the slice: by then the send, which came before, has been read.
                for _ in range(2 if early else 1):
                    packet = self._at(uuid, time, self._event.TYPE_SLICE_END)
                    if number:
                        packet.track_event.terminating_flow_ids.append(number)
                        number = 0
                    self._write(packet)
        return len(events)

    def counters(self, events: np.ndarray, memory: np.ndarray) -> None:
        """A track a counter."""
        for called, unit, at, values in counters(events, memory):
            uuid = self._track(called, unit)
            for time, value in zip(at.tolist(), values.tolist(), strict=True):
                packet = self._at(uuid, time, self._event.TYPE_COUNTER)
                packet.track_event.counter_value = value
                self._write(packet)

    def _track(self, called: str, unit: str = "") -> int:
        """Describe one more track of the process; a unit makes it a counter's. Returns its number."""
        self._tracks += 1
        packet = self._packet()
        track = packet.track_descriptor
        track.uuid, track.parent_uuid, track.name = self._tracks, self._process, called
        track.sibling_order_rank = self._tracks - self._process
        if unit == "bytes":
            track.counter.unit = self._proto.CounterDescriptor.UNIT_SIZE_BYTES
        elif unit:
            track.counter.unit_name = unit
        self._write(packet)
        return self._tracks

    def _slice(self, uuid: int, time: int, called: str, group: str) -> Any:
        packet = self._at(uuid, time, self._event.TYPE_SLICE_BEGIN)
        packet.track_event.name_iid = self._intern(packet, "event_names", called)
        packet.track_event.category_iids.append(self._intern(packet, "event_categories", group))
        return packet

    def _annotate(self, packet: Any, values: dict[str, int | str]) -> None:
        for key, value in values.items():
            note = packet.track_event.debug_annotations.add(name_iid=self._intern(packet, "debug_annotation_names", key))
            if isinstance(value, str):
                note.string_value_iid = self._intern(packet, "debug_annotation_string_values", value)
            else:
                note.int_value = value

    def _intern(self, packet: Any, table: str, text: str) -> int:
        """The number of a text; the packet that needs it first brings it along."""
        number = self._known.get((table, text))
        if number is None:
            number = self._known[table, text] = len(self._known) + 1
            entry = getattr(packet.interned_data, table).add(iid=number)
            if table == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return number

    def _at(self, uuid: int, time: int, kind: int) -> Any:
        packet = self._packet()
        packet.timestamp, packet.track_event.track_uuid, packet.track_event.type = time - self._first, uuid, kind
        return packet

    def _packet(self) -> Any:
        flags = self._proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return self._proto.TracePacket(trusted_packet_sequence_id=self._rank + 1, sequence_flags=flags)

    def _write(self, packet: Any) -> None:
        """A packet is field 1 of the trace: its tag, its length as a varint, its bytes."""
        data = packet.SerializeToString()
        length, head = len(data), bytearray(b"\x0a")
        while length > 127:
            head.append(length & 127 | 128)
            length >>= 7
        head.append(length)
        self._file.write(head + data)
