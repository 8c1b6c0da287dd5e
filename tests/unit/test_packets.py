"""The wire format that is written by hand, read by Perfetto's definitions and compared with what its builder makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from distprof.report.packets import ARROWS, EventPackets

SEQUENCE, ARGUMENTS = 1, 3
PACKETS = EventPackets(SEQUENCE, ARGUMENTS)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "time": st.integers(1, 2**63 - 1),
            "track": st.integers(1, 2**63 - 1),
            "name": st.integers(1, 2**28 - 1),
            "category": st.integers(1, 2**28 - 1),
            "id": st.integers(0, 2**64 - 1),
            "text": st.text(max_size=300).map(str.encode),
        }
    ),
    min_size=1,
    max_size=5,
)
Row = dict[str, Any]


def columns(rows: list[Row], *names: str) -> dict[str, Any]:
    kinds = {"id": np.uint64}
    return {name: np.array([row[name] for row in rows], dtype=kinds.get(name, np.int64)) for name in names}


def built(rows: list[Row], what: str) -> Trace:
    """What the builder makes of the same."""
    builder = TraceProtoBuilder()
    for row in rows:
        packet = builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id = row["time"], SEQUENCE
        event = packet.track_event
        event.track_uuid = row["track"]
        if what == "end":
            event.type = TrackEvent.TYPE_SLICE_END
            continue
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event.name_iid = row["name"]
        event.category_iids.append(row["category"])
        if what in ARROWS:
            event.legacy_event.phase = ord(what)
            event.legacy_event.unscoped_id = row["id"]
            event.legacy_event.bind_to_enclosing = True
            continue
        event.type = TrackEvent.TYPE_SLICE_BEGIN
        if what == "annotated":
            event.debug_annotations.add(name_iid=ARGUMENTS, legacy_json_value=row["text"].decode())
    return Trace.FromString(builder.serialize())


@given(ROWS)
def test_beginnings_are_what_the_builder_makes(rows: list[Row]) -> None:
    numbers = columns(rows, "time", "track", "name", "category")
    for what, texts in (("annotated", [row["text"] for row in rows]), ("bare", None)):
        data, sizes = PACKETS.begins(texts, **numbers)
        assert Trace.FromString(data) == built(rows, what)
        assert sizes.sum() == len(data) and Trace.FromString(data[: sizes[0]]) == built(rows[:1], what)


@given(ROWS)
def test_ends_are_what_the_builder_makes(rows: list[Row]) -> None:
    assert Trace.FromString(PACKETS.ends(**columns(rows, "time", "track"))) == built(rows, "end")


@pytest.mark.parametrize("phase", ARROWS)
@given(rows=ROWS)
def test_arrows_are_what_the_builder_makes(phase: str, rows: list[Row]) -> None:
    numbers = columns(rows, "time", "track", "name", "category", "id")
    assert Trace.FromString(PACKETS.arrows(phase, **numbers)) == built(rows, phase)


def test_a_long_text_and_none_at_all_are_events_like_others() -> None:
    rows = [{"time": 1, "track": 2, "name": 3, "category": 4, "text": b"x" * (1 << 22)}]
    numbers = columns(rows, "time", "track", "name", "category")
    assert Trace.FromString(PACKETS.begins([rows[0]["text"]], **numbers)[0]) == built(rows, "annotated")
    nothing = {name: values[:0] for name, values in numbers.items()}
    assert PACKETS.begins([], **nothing)[0] == b"" == PACKETS.begins(None, **nothing)[0]
