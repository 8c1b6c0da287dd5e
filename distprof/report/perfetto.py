"""A timeline as Perfetto's own protobuf."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, BinaryIO, cast

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

from distprof.report.drawing import Lane, Slice
from distprof.report.packets import ARROWS, EventPackets
from distprof.report.window_events import Batch, WindowEvent
from distprof.trace.intervals import Times

# All packets are of one sequence: what one of them introduces, others name by a number.
_SEQUENCE = 1
# Of one moment, slices end before others begin, the longest first, those without a length end, and marks lie inside.
_ENDS, _BEGINS, _AT_ONCE, _MARKS = range(4)
_UINT32, _INT64, _UINT64 = 2**32 - 1, 2**63, 2**64
_ARROWS = 1 << 62  # what arrows are numbered from, far from the flows of traces
_TRACKS = 1 << 62  # what tracks are numbered from, so that all have as many digits
_ABOUT = 1  # the track of what there is to say about the file
_IN_MEMORY = 1 << 22  # bytes of packets of a kind that wait there


class PerfettoWriter:
    """Writes packets; times are Unix ns.

    Perfetto sorts them by time; those of one moment stay in the order of the file. So the packets of a process are
    written kind after kind.
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
        self._packets = EventPackets(_SEQUENCE, self._annotations["args"])
        self._kinds = [tempfile.SpooledTemporaryFile(_IN_MEMORY) for _ in range(_MARKS + 1)]  # noqa: SIM115
        self._recorded = _Begins()
        self._drawn: list[tuple[int, int, int]] = []  # start, length and track of slices whose ends are to be added
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

    def slice(self, drawn: Slice) -> None:
        """See `Writer`. Perfetto chooses the colour by the name."""
        # Viewers drop an arrow that does not end after its beginning, be it by a nanosecond.
        start = drawn.start + bool(drawn.arriving)
        track = _track(drawn.lane.process, drawn.lane.number)
        builder, event = self._event(start, track, drawn.name, drawn.category)
        event.type = TrackEvent.TYPE_SLICE_BEGIN
        self._annotate(event, drawn.args)
        event.flow_ids.extend(_ARROWS + arrow for arrow in drawn.leaving)
        event.terminating_flow_ids.extend(_ARROWS + arrow for arrow in drawn.arriving)
        self._add(_BEGINS, builder.serialize())
        self._drawn.append((start, drawn.end - start, track))

    def instant(self, lane: Lane, name: str, category: str, at: int) -> None:
        """See `Writer`."""
        builder, event = self._event(at, _track(lane.process, lane.number), name, category)
        event.type = TrackEvent.TYPE_INSTANT
        self._add(_MARKS, builder.serialize())

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
            self._add(_MARKS, builder.serialize())

    def recorded(self, batch: Batch) -> None:
        """See `Writer`."""
        slices = batch.slices
        track = _track(batch.process) + batch.lanes
        events = list(compress(batch.events, slices.tolist()))
        self._add_recorded(batch, events, batch.start[slices], batch.length[slices], track[slices])
        arrows: dict[str, list[int]] = {phase: [] for phase in ARROWS}
        for row in np.flatnonzero(~slices).tolist():
            event = batch.events[row]
            if event.ph in arrows:
                arrows[event.ph].append(row)
            else:
                self._add_rare(batch, event, int(batch.start[row]), int(track[row]))
        for phase, rows in arrows.items():
            events = [batch.events[row] for row in rows]
            ids = np.array([_flow(event.id) for event in events], dtype=np.uint64)
            numbers = self._numbers(events, batch.start[rows], track[rows])
            self._add(_MARKS, self._packets.arrows(phase, **numbers, id=ids))

    def close(self, about: Mapping[str, Any]) -> None:
        """See `Writer`."""
        self._flush()
        builder, packet = _packet()
        packet.track_descriptor.uuid, packet.track_descriptor.name = _ABOUT, "distprof"
        self._file.write(builder.serialize())
        builder, event = self._event(0, _ABOUT, "about", "")
        event.type = TrackEvent.TYPE_INSTANT
        self._annotate(event, about)
        self._add(_MARKS, builder.serialize())
        self._flush()

    def _event(self, at: int, track: int, name: str, category: str) -> tuple[TraceProtoBuilder, Any]:
        builder, packet = _packet(self._base + at)
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event = packet.track_event
        event.track_uuid, event.name_iid = track, self._names[name]
        event.category_iids.append(self._categories[category])
        return builder, event

    def _numbers(self, events: list[WindowEvent], start: Times, track: Times) -> dict[str, Times]:
        """What packets of recorded events are told of."""
        names = map(self._names.__getitem__, [event.name or "" for event in events])
        categories = map(self._categories.__getitem__, [event.cat or "" for event in events])
        count = len(events)
        return {
            "time": self._base + start,
            "track": track,
            "name": np.fromiter(names, dtype=np.int64, count=count),
            "category": np.fromiter(categories, dtype=np.int64, count=count),
        }

    def _add_recorded(self, batch: Batch, events: list[WindowEvent], start: Times, length: Times, track: Times) -> None:
        """Add recorded slices; their arguments stay JSON."""
        self._add_ends(start, length, track)
        numbers = self._numbers(events, start, track)
        arguments = [event.args for event in events]
        told = np.array([isinstance(text, Raw) for text in arguments], dtype=np.bool_)
        # JSON holds no NUL.
        texts = batch.ids.renamed(b"\0".join(cast(list[bytes], compress(arguments, told.tolist())))).split(b"\0")
        for rows, texts_of_rows in ((told, texts), (~told, None)):
            if rows.any():
                data, sizes = self._packets.begins(texts_of_rows, **{key: each[rows] for key, each in numbers.items()})
                self._recorded.add(data, sizes, start[rows], length[rows], track[rows])

    def _add_ends(self, start: Times, length: Times, track: Times) -> None:
        for what, rows in ((_ENDS, length > 0), (_AT_ONCE, length == 0)):
            if rows.any():
                time = self._base + start[rows] + length[rows]
                self._add(what, self._packets.ends(time=time, track=track[rows]))

    def _add_rare(self, batch: Batch, event: WindowEvent, at: int, track: int) -> None:
        """Add a recorded event that is no slice and no arrow."""
        text = bytes(event.args) if isinstance(event.args, Raw) else b"{}"
        args = msgspec.json.decode(batch.ids.renamed(text))
        args = args if isinstance(args, dict) else {}
        name = event.name or ""
        if event.ph == "C":
            for key, value in args.items():
                if isinstance(value, int | float):
                    self.counter(batch.process, name, key, [(at, value)])
            return
        builder, track_event = self._event(at, track, name, event.cat or "")
        self._annotate(track_event, args)
        if event.ph in "BE":
            track_event.type = TrackEvent.TYPE_SLICE_BEGIN if event.ph == "B" else TrackEvent.TYPE_SLICE_END
        elif event.ph in "iI":
            track_event.type = TrackEvent.TYPE_INSTANT
        else:
            track_event.legacy_event.phase = ord(event.ph)
            track_event.legacy_event.unscoped_id = _flow(event.id)
            track_event.legacy_event.bind_to_enclosing = True
        self._add({"B": _BEGINS, "E": _ENDS}.get(event.ph, _MARKS), builder.serialize())

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

    def _add(self, what: int, packets: bytes) -> None:
        self._kinds[what].write(packets)

    def _flush(self) -> None:
        """Write what was drawn of the process before."""
        builder, packet = _packet()
        packet.interned_data.CopyFrom(self._untold)
        for texts in (self._untold.event_names, self._untold.event_categories, self._untold.debug_annotation_names):
            del texts[:]
        self._file.write(builder.serialize())
        self._add_ends(*np.array(self._drawn, dtype=np.int64).reshape(-1, 3).T)
        self._drawn.clear()
        for what, packets in enumerate(self._kinds):
            packets.seek(0)
            shutil.copyfileobj(packets, self._file)
            packets.seek(0)
            packets.truncate()
            if what == _BEGINS:
                self._recorded.write_to(self._file)


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


class _Begins:
    """Beginnings of recorded slices, in a temporary file; of one moment and track, the longest come first."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._sizes: list[Times] = []
        self._keys: list[tuple[Times, Times, Times]] = []

    def add(self, packets: bytes, sizes: Times, start: Times, length: Times, track: Times) -> None:
        """Add packets one after the other, of so many bytes each."""
        self._file.write(packets)
        self._sizes.append(sizes)
        self._keys.append((start, length, track))

    def write_to(self, target: BinaryIO) -> None:
        """Write all that there are; none is left."""
        if not self._sizes:
            return
        start, length, track = (np.concatenate(parts) for parts in zip(*self._keys, strict=True))
        self._file.seek(0)
        if _is_in_order(start, length, track):
            shutil.copyfileobj(self._file, target)
        else:
            ends = np.cumsum(sizes := np.concatenate(self._sizes))
            order = np.lexsort((-length, start))
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                target.writelines(
                    text[begin:end]
                    for begin, end in zip((ends - sizes)[order].tolist(), ends[order].tolist(), strict=True)
                )
        self._file.seek(0)
        self._file.truncate()
        self._sizes, self._keys = [], []


def _is_in_order(start: Times, length: Times, track: Times) -> bool:
    """Whether of slices that begin at one moment on one track the longest come first."""
    order = np.lexsort((start, track))
    start, length, track = start[order], length[order], track[order]
    together = (start[1:] == start[:-1]) & (track[1:] == track[:-1])
    return not bool((together & (length[1:] > length[:-1])).any())


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
    return _TRACKS + (process + 1 << 32) + number


def _flow(number: object) -> int:
    """An id as a number."""
    if type(number) is int and 0 <= number < _ARROWS:
        return number
    return int.from_bytes(hashlib.blake2b(str(number).encode(), digest_size=8).digest())
