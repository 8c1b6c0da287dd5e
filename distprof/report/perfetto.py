"""A timeline as Perfetto's own protobuf."""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Raw
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BuiltinClock,
    CounterDescriptor,
    InternedData,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from distprof.report.drawing import Colour, Lane
from distprof.report.window_events import SLICE, Batch, WindowEvent

# All packets are of one sequence: what one of them introduces, others name by a number.
_SEQUENCE = 1
# Of one moment, slices end before others begin, the longest first, and marks lie inside.
_ENDS, _BEGINS, _MARKS = range(3)
_UINT32, _INT64, _UINT64 = 2**32 - 1, 2**63, 2**64
_ARROWS = 1 << 62  # what arrows are numbered from, far from the flows of traces
_ABOUT = 1  # the track of what there is to say about the file


class PerfettoWriter:
    """Writes packets; times are Unix ns.

    What happened at one moment is taken in the order of the file. So the packets of a process are sorted before they
    are written.
    """

    def __init__(self, file: BinaryIO, base: int) -> None:
        """Begin.

        Args:
            base: the timeline's beginning, in Unix ns.
        """
        self._file = file
        self._base = base
        self._untold = InternedData()
        self._names = _Numbers(self._untold.event_names)
        self._categories = _Numbers(self._untold.event_categories)
        self._annotations = _Numbers(self._untold.debug_annotation_names)
        self._sorted = _Sorted()
        self._end = _packet(base)  # one for all slices
        self._end[1].track_event.type = TrackEvent.TYPE_SLICE_END
        self._counters: dict[tuple[int, str], int] = {}
        builder, packet = _packet()
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for clock in (BuiltinClock.BUILTIN_CLOCK_BOOTTIME, BuiltinClock.BUILTIN_CLOCK_REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=base)
        file.write(builder.serialize())

    def process(self, process: int, name: str, order: int) -> None:
        """See `Writer`."""
        self._flush()
        builder, packet = _packet()
        track = packet.track_descriptor
        track.uuid, track.name, track.child_ordering = _track(process), name, TrackDescriptor.EXPLICIT
        track.process.pid, track.process.process_name, track.process.legacy_sort_index = process, name, order
        self._file.write(builder.serialize())

    def lane(self, lane: Lane, name: str, order: int) -> None:
        """See `Writer`."""
        builder, packet = _packet()
        track = packet.track_descriptor
        track.uuid, track.parent_uuid, track.name = _track(lane.process, lane.number), _track(lane.process), name
        track.sibling_order_rank = order
        track.sibling_merge_behavior = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
        self._file.write(builder.serialize())

    def slice(
        self,
        lane: Lane,
        name: str,
        category: str,
        *,
        start: int,
        end: int,
        args: Mapping[str, Any],
        colour: Colour | None = None,
        leaving: Sequence[int] = (),
        arriving: Sequence[int] = (),
    ) -> None:
        """See `Writer`. Perfetto chooses the colour by the name."""
        # Viewers drop an arrow that does not end after its beginning, be it by a nanosecond.
        start += bool(arriving)
        builder, event = self._event(start, _track(lane.process, lane.number), name, category)
        self._annotate(event, args)
        event.flow_ids.extend(_ARROWS + arrow for arrow in leaving)
        event.terminating_flow_ids.extend(_ARROWS + arrow for arrow in arriving)
        self._add_slice(builder, event, start, end - start)

    def instant(self, lane: Lane, name: str, category: str, at: int) -> None:
        """See `Writer`."""
        builder, event = self._event(at, _track(lane.process, lane.number), name, category)
        event.type = TrackEvent.TYPE_INSTANT
        self._sorted.add(at, _MARKS, 0, builder.serialize())

    def counter(self, process: int, name: str, unit: str, values: Sequence[tuple[int, float]]) -> None:
        """See `Writer`."""
        track = self._counters.get((process, name))
        if track is None:
            track = self._counters[process, name] = _track(process, _UINT32 - len(self._counters))
            builder, packet = _packet()
            descriptor = packet.track_descriptor
            descriptor.uuid, descriptor.parent_uuid, descriptor.name = track, _track(process), name
            if unit == "bytes":
                descriptor.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
            else:
                descriptor.counter.unit_name = unit
            self._file.write(builder.serialize())
        for at, value in values:
            builder, packet = _packet(self._base + at)
            event = packet.track_event
            event.type, event.track_uuid = TrackEvent.TYPE_COUNTER, track
            if isinstance(value, int):
                event.counter_value = value
            else:
                event.double_counter_value = value
            self._sorted.add(at, _MARKS, 0, builder.serialize())

    def recorded(self, batch: Batch) -> None:
        """See `Writer`."""
        events = batch.events
        names = msgspec.json.decode(msgspec.json.encode([event.name or "" for event in events]))
        args = msgspec.json.decode(batch.ids.renamed(msgspec.json.encode([event.args or None for event in events])))
        places = zip(batch.lanes, batch.start.tolist(), batch.length.tolist(), strict=True)
        for event, name, its, (lane, at, length) in zip(events, names, args, places, strict=True):
            if event.ph == "C":
                for key, value in its.items() if isinstance(its, dict) else ():
                    if isinstance(value, int | float):
                        self.counter(batch.process, str(name), key, [(at, value)])
                continue
            builder, track_event = self._event(at, _track(batch.process, lane), str(name), event.cat or "")
            if isinstance(its, dict):
                self._annotate(track_event, its)
            if event.ph == SLICE:
                self._add_slice(builder, track_event, at, length)
            elif event.ph in "BE":
                track_event.type = TrackEvent.TYPE_SLICE_BEGIN if event.ph == "B" else TrackEvent.TYPE_SLICE_END
                self._sorted.add(at, _BEGINS if event.ph == "B" else _ENDS, 0, builder.serialize())
            else:
                self._add_mark(builder, track_event, at, event)

    def close(self, about: Mapping[str, Any]) -> None:
        """See `Writer`."""
        self._flush()
        builder, packet = _packet()
        packet.track_descriptor.uuid, packet.track_descriptor.name = _ABOUT, "distprof"
        self._file.write(builder.serialize())
        builder, event = self._event(0, _ABOUT, "about", "")
        event.type = TrackEvent.TYPE_INSTANT
        self._annotate(event, about)
        self._sorted.add(0, _MARKS, 0, builder.serialize())
        self._flush()

    def _event(self, at: int, track: int, name: str, category: str) -> tuple[TraceProtoBuilder, Any]:
        builder, packet = _packet(self._base + at)
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event = packet.track_event
        event.track_uuid, event.name_iid = track, self._names[name]
        if category:
            event.category_iids.append(self._categories[category])
        return builder, event

    def _add_slice(self, builder: TraceProtoBuilder, event: Any, start: int, length: int) -> None:
        event.type = TrackEvent.TYPE_SLICE_BEGIN
        ends, end = self._end
        end.timestamp, end.track_event.track_uuid = self._base + start + length, event.track_uuid
        if length:
            self._sorted.add(start + length, _ENDS, 0, ends.serialize())
        else:
            builder.add_packet().CopyFrom(end)  # it stays with its beginning
        self._sorted.add(start, _BEGINS, length, builder.serialize())

    def _add_mark(self, builder: TraceProtoBuilder, track_event: Any, at: int, event: WindowEvent) -> None:
        if event.ph in "iI":
            track_event.type = TrackEvent.TYPE_INSTANT
        else:
            track_event.legacy_event.phase = ord(event.ph)
            track_event.legacy_event.unscoped_id = _flow(bytes(event.id) if isinstance(event.id, Raw) else b"")
            track_event.legacy_event.bind_to_enclosing = True
        self._sorted.add(at, _MARKS, 0, builder.serialize())

    def _annotate(self, event: Any, args: Mapping[str, Any]) -> None:
        add, names = event.debug_annotations.add, self._annotations
        for name, value in args.items():
            if value is None:
                continue
            annotation = add()
            annotation.name_iid = names[name]
            kind = type(value)
            if kind is int and -_INT64 <= value < _INT64:
                annotation.int_value = value
            elif kind is str:
                annotation.string_value = value
            elif kind is float:
                annotation.double_value = value
            elif kind is bool:
                annotation.bool_value = value
            elif kind is not int:
                annotation.legacy_json_value = msgspec.json.encode(value).decode()
            elif 0 <= value < _UINT64:
                annotation.uint_value = value
            else:
                annotation.string_value = str(value)

    def _flush(self) -> None:
        """Write what was drawn of the process before."""
        builder, packet = _packet()
        packet.interned_data.CopyFrom(self._untold)
        for texts in (self._untold.event_names, self._untold.event_categories, self._untold.debug_annotation_names):
            del texts[:]
        self._file.write(builder.serialize())
        for data in self._sorted.taken():
            self._file.write(data)


class _Numbers(dict[str, int]):
    """Texts that packets name by a number. Each new one is added to what the file is yet to be told."""

    def __init__(self, untold: Any) -> None:
        """Begin.

        Args:
            untold: a field of `InternedData`.
        """
        super().__init__()
        self._untold = untold

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self) + 1
        self._untold.add(iid=number, name=text)
        return number


class _Sorted:
    """Packets, sorted by time, then by what they are, then by length; they lie in a temporary file meanwhile."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._keys = array("q")

    def add(self, at: int, what: int, length: int, data: bytes) -> None:
        """Add a packet."""
        self._keys.extend((at, what, length, len(data)))
        self._file.write(data)

    def taken(self) -> Iterator[bytes]:
        """All packets, in order; none is left."""
        if not self._keys:
            return
        self._file.flush()
        at, what, length, sizes = np.array(self._keys).reshape(-1, 4).T
        ends = np.cumsum(sizes)
        order = np.lexsort((-length, what, at))
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            for begin, end in zip((ends - sizes)[order].tolist(), ends[order].tolist(), strict=True):
                yield text[begin:end]
        self._file.seek(0)
        self._file.truncate()
        self._keys = array("q")


def _packet(at: int | None = None) -> tuple[TraceProtoBuilder, Any]:
    """A builder with one packet, and that."""
    builder = TraceProtoBuilder()
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id = _SEQUENCE
    if at is not None:
        packet.timestamp = at
    return builder, packet


def _track(process: int, number: int = 0) -> int:
    """The track of a lane or, without a number, of a process. None is 0: that would be the whole trace's."""
    return (process + 1 << 32) + number


def _flow(text: bytes) -> int:
    """An id, as it stands in JSON, as a number."""
    if text.isdigit() and int(text) < _ARROWS:
        return int(text)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
