"""Packets of recorded events in Perfetto's wire format, many at a time.

A message object per event would take ten times as long. All packets of a kind have the same bytes but for some numbers,
so they are rows of a table, and a number is written into all rows at once. The fields' numbers are taken from the
protobuf definitions. Numbers, and lengths of what varies, take a fixed count of bytes: varints may have redundant ones,
which Perfetto's own writer leaves in lengths, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, Trace, TracePacket, TrackEvent

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
Rows = npt.NDArray[np.uint8]

# Bytes of a varint; each holds seven bits. Times are ns since 1970, an id may be as large as a varint can be.
_WIDTHS = {"time": 9, "track": 9, "name": 4, "category": 4, "id": 10, "length": 4}
_SHIFTS = 7 * np.arange(10, dtype=np.uint64)
_MORE = np.uint8(0x80)  # another byte of the varint follows
ARROWS = "stf"  # phases of arrows: they begin, pass, end

_LegacyEvent = TrackEvent.LegacyEvent
_NESTED = 2  # the wire type of texts and messages; that of numbers is 0
_NESTED_TYPES = (9, 11)


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _key(message: Any, field: str) -> bytes:
    """What stands before a field's value."""
    told = message.DESCRIPTOR.fields_by_name[field]
    return _varint(told.number << 3 | (_NESTED if told.type in _NESTED_TYPES else 0))


def _number(message: Any, field: str, value: int) -> bytes:
    return _key(message, field) + _varint(value)


def _width(name: str) -> int:
    return _WIDTHS[name.partition("-")[0]]


class _Form:
    """Packets that are the same but for some numbers."""

    def __init__(self, *parts: bytes | str) -> None:
        """Begin.

        Args:
            parts: bytes, or the name of a number; `length`, also with something after a hyphen, is that of all that
                follows it.
        """
        joined = b"".join(part if isinstance(part, bytes) else bytes(_width(part)) for part in parts)
        self.size = len(joined)
        self._row = np.frombuffer(joined, dtype=np.uint8).reshape(1, -1).copy()
        self._places: dict[str, int] = {}
        at = 0
        for part in parts:
            if isinstance(part, str):
                self._places[part] = at
            at += len(part) if isinstance(part, bytes) else _width(part)
        self._fill(self._row, self._lengths(np.zeros(1, dtype=np.int64)))

    def _lengths(self, more: Numbers) -> dict[str, Numbers]:
        """The packets' lengths if so many bytes follow each."""
        lengths = ((name, self.size - at - _width(name)) for name, at in self._places.items())
        return {name: after + more for name, after in lengths if name.startswith("length")}

    def _fill(self, rows: Rows, numbers: Mapping[str, Numbers]) -> None:
        for name, values in numbers.items():
            begin, width = self._places[name], _width(name)
            septets = values.astype(np.uint64)[:, None] >> _SHIFTS[:width]
            rows[:, begin : begin + width] = septets.astype(np.uint8) | _MORE
            rows[:, begin + width - 1] &= ~_MORE

    def rows(self, count: int, more: Numbers | None = None, **numbers: Numbers) -> Rows:
        """The packets, one a row.

        Args:
            more: bytes that will follow each of them.
        """
        rows = np.repeat(self._row, count, axis=0)
        self._fill(rows, numbers if more is None else {**numbers, **self._lengths(more)})
        return rows


class EventPackets:
    """Encodes events of one sequence of packets."""

    def __init__(self, sequence: int, arguments: int) -> None:
        """Prepare the forms.

        Args:
            sequence: number of the sequence.
            arguments: number of the name that events' arguments get; they stay one text, as JSON.
        """
        sent = _number(TracePacket, "trusted_packet_sequence_id", sequence)
        opened = (_key(Trace, "packet"), "length", _key(TracePacket, "timestamp"), "time", sent)
        needs = _number(TracePacket, "sequence_flags", TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
        event = (_key(TracePacket, "track_event"), "length-event", _key(TrackEvent, "track_uuid"), "track")
        named = (_key(TrackEvent, "name_iid"), "name", _key(TrackEvent, "category_iids"), "category")
        begins = _number(TrackEvent, "type", TrackEvent.TYPE_SLICE_BEGIN)
        annotated = (
            _key(TrackEvent, "debug_annotations"),
            "length-annotation",
            _number(DebugAnnotation, "name_iid", arguments),
            _key(DebugAnnotation, "legacy_json_value"),
            "length-text",
        )
        arrow = _number(_LegacyEvent, "bind_to_enclosing", 1) + _key(_LegacyEvent, "unscoped_id")
        arrow_phase = _number(_LegacyEvent, "phase", 1)[:-1]
        self._bare = _Form(*opened, needs, *event, *named, begins)
        self._annotated = _Form(*opened, needs, *event, *named, begins, *annotated)
        self._ends = _Form(*opened, *event, _number(TrackEvent, "type", TrackEvent.TYPE_SLICE_END))
        self._arrows = {
            phase: _Form(
                *opened, needs, *event, *named, _key(TrackEvent, "legacy_event"), "length-legacy",
                arrow_phase + bytes([ord(phase)]) + arrow, "id",
            )
            for phase in ARROWS
        }  # fmt: skip

    def begins(self, texts: list[bytes] | None, **numbers: Numbers) -> tuple[bytes, npt.NDArray[np.int64]]:
        """Beginnings of slices one after the other, and how many bytes each has.

        Args:
            texts: the events' arguments, as JSON; None: they have none.
            numbers: `time`, `track`, `name` and `category` of each.
        """
        count = len(numbers["time"])
        if texts is None:
            return self._bare.rows(count, **numbers).tobytes(), np.full(count, self._bare.size)
        size = self._annotated.size
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=count)
        rows = self._annotated.rows(count, **numbers, more=lengths).tobytes()
        pieces = [b""] * (2 * count)
        pieces[::2] = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
        pieces[1::2] = texts
        return b"".join(pieces), lengths + size

    def ends(self, **numbers: Numbers) -> bytes:
        """Ends of slices, one after the other.

        Args:
            numbers: `time` and `track` of each.
        """
        return self._ends.rows(len(numbers["time"]), **numbers).tobytes()

    def arrows(self, phase: str, **numbers: Numbers) -> bytes:
        """Where arrows begin, pass or end, one after the other.

        Args:
            phase: one of `ARROWS`.
            numbers: `time`, `track`, `name`, `category` and `id` of each.
        """
        return self._arrows[phase].rows(len(numbers["time"]), **numbers).tobytes()
