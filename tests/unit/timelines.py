"""Reading timelines back, as strictly as the pickiest viewer, into one form whatever the format."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

Args = dict[str, Any]


@dataclass(frozen=True)
class Slice:
    """A slice of a lane; times are Unix ns."""

    rank: int
    lane: str
    name: str
    category: str
    start: int
    end: int
    args: Args = field(compare=False)


@dataclass(frozen=True)
class Mark:
    rank: int
    lane: str
    name: str
    at: int


@dataclass(frozen=True)
class Arrow:
    """From a slice to a slice."""

    category: str
    leaves: Slice
    arrives: Slice


@dataclass
class Timeline:
    """What a viewer would show. `processes` and `lanes` stand in the order in which they are shown."""

    processes: dict[int, str] = field(default_factory=dict)
    lanes: dict[int, list[str]] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    counters: dict[tuple[int, str], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    about: Args = field(default_factory=dict)

    def on(self, rank: int, lane: str) -> list[Slice]:
        """Slices of a rank on lanes whose name begins so, by start."""
        found = [one for one in self.slices if one.rank == rank and one.lane.startswith(lane)]
        return sorted(found, key=lambda one: (one.start, -one.end))

    def named(self, name: str) -> list[Slice]:
        """Slices of this name, by rank."""
        return sorted((one for one in self.slices if one.name == name), key=lambda one: (one.rank, one.start))


def strict(data: bytes) -> dict[str, Any]:
    """JSON: UTF-8, no NaN, no key twice in an object."""

    def refuse(text: str) -> NoReturn:
        raise AssertionError(f"{text} is no JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), pairs
        return dict(pairs)

    value: dict[str, Any] = json.loads(
        data.decode(), parse_float=Decimal, parse_constant=refuse, object_pairs_hook=unique
    )
    json.dumps(value, ensure_ascii=False, default=str).encode()  # no half of a surrogate pair
    return value


def chrome(path: Path) -> dict[str, Any]:
    """A Chrome trace as it stands in the file."""
    data = path.read_bytes()
    return strict(gzip.decompress(data) if path.suffix == ".gz" else data)


def read_timeline(path: Path) -> Timeline:
    """Read a timeline, checking that it can be drawn."""
    timeline = _read_packets(path) if path.suffix == ".pftrace" else _read_chrome(path)
    check_drawable(timeline)
    return timeline


def check_drawable(timeline: Timeline) -> None:
    """Each slice is on a lane with a name; those of a lane nest or are disjoint."""
    by_lane: dict[tuple[int, str], list[Slice]] = defaultdict(list)
    for one in timeline.slices:
        assert one.start <= one.end
        by_lane[one.rank, one.lane].append(one)
    for (rank, lane), slices in by_lane.items():
        assert lane in timeline.lanes[rank]
        open_until: list[int] = []
        for one in sorted(slices, key=lambda one: (one.start, -one.end)):
            while open_until and open_until[-1] <= one.start:
                open_until.pop()
            assert not open_until or one.end <= open_until[-1], one
            open_until.append(one.end)
    for rank, names in timeline.lanes.items():
        assert rank in timeline.processes
        assert len(set(names)) == len(names), names


def enclosing(slices: list[Slice]) -> Callable[[int], Any]:
    """What finds the innermost of the slices of one lane at a time, or None."""
    open_at: list[tuple[int, list[Slice]]] = []  # from a time on
    stack: list[Slice] = []

    def close(until: int) -> None:
        while stack and stack[-1].end <= until:
            end = stack.pop().end
            open_at.append((end, stack[-1:]))

    for one in sorted(slices, key=lambda one: (one.start, -one.end)):
        close(one.start)
        stack.append(one)
        open_at.append((one.start, [one]))
    close(2**63)
    times = [time for time, _ in open_at]

    def at(time: int) -> Slice | None:
        place = bisect_right(times, time)
        return next(iter(open_at[place - 1][1]), None) if place else None

    return at


def _read_chrome(path: Path) -> Timeline:
    trace = chrome(path)
    base = trace["baseTimeNanoseconds"]
    events = trace["traceEvents"]
    timeline = Timeline(about=trace["otherData"])
    metadata: dict[str, dict[tuple[int, int], Any]] = defaultdict(dict)
    for event in events:
        if event["ph"] == "M":
            key = (event["pid"], event["tid"])
            assert key not in metadata[event["name"]]
            [metadata[event["name"]][key]] = event["args"].values()
    order = metadata["process_sort_index"]
    for pid, tid in sorted(metadata["process_name"], key=lambda key: order[key]):
        timeline.processes[pid] = metadata["process_name"][pid, tid]
    threads = metadata["thread_name"]
    order = metadata["thread_sort_index"]
    for pid, tid in sorted(threads, key=lambda key: (key[0], order[key])):
        timeline.lanes.setdefault(pid, []).append(threads[pid, tid])

    def ns(event: dict[str, Any]) -> int:
        value = base + event["ts"] * 1000
        assert value == int(value)
        return int(value)

    on_lane: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    flows: dict[tuple[str, str, Any], dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        place = (event["pid"], event.get("tid"))
        if event["ph"] == "X":
            args = event.get("args") or {}
            length = event["dur"] * 1000
            assert length == int(length)
            one = Slice(
                event["pid"], threads[place], event["name"], event["cat"], ns(event), ns(event) + int(length), args
            )
            timeline.slices.append(one)
            on_lane[place].append(one)
        elif event["ph"] == "i":
            timeline.marks.append(Mark(event["pid"], threads[place], event["name"], ns(event)))
        elif event["ph"] == "C":
            [value] = event["args"].values()
            timeline.counters[event["pid"], event["name"]].append((ns(event), float(value)))
        elif event["ph"] in "sf":
            flow = flows[event["cat"], event["name"], event["id"]]
            assert event["ph"] not in flow, "one id, two arrows"
            flow[event["ph"]] = event
    around = {place: enclosing(slices) for place, slices in on_lane.items()}
    for (category, _, _), ends in flows.items():
        found = {
            phase: around[end["pid"], end["tid"]](ns(end))
            for phase, end in ends.items()
            if (end["pid"], end["tid"]) in around
        }
        if found.keys() == {"s", "f"} and all(found.values()):
            # A device's clock may be behind its host's: then viewers drop the arrow.
            assert category != "last_arrival" or ns(ends["s"]) < ns(ends["f"])
            timeline.arrows.append(Arrow(category, found["s"], found["f"]))
    return timeline


def _introduced(trace: Any) -> tuple[dict[tuple[str, int], str], dict[int, Any]]:
    """Names by what names what, and number, and tracks by number; checks that what packets refer to has been
    introduced, and that they are complete."""
    names: dict[tuple[str, int], str] = {}
    tracks: dict[int, Any] = {}
    assert trace.packet[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        event = packet.track_event
        for message in (packet, event, event.legacy_event, *event.debug_annotations):
            assert not len(UnknownFieldSet(message)), "a field that is not in the definitions"
        assert packet.trusted_packet_sequence_id == trace.packet[0].trusted_packet_sequence_id
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            for entry in getattr(packet.interned_data, kind):
                assert entry.iid and (kind, entry.iid) not in names
                names[kind, entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid and packet.track_descriptor.uuid not in tracks
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif packet.HasField("track_event"):
            assert packet.HasField("timestamp") and event.track_uuid
            used = [("event_names", event.name_iid)] if event.name_iid else []
            used += [("event_categories", number) for number in event.category_iids]
            used += [("debug_annotation_names", each.name_iid) for each in event.debug_annotations]
            assert names.keys() >= set(used), "a name is used before it is introduced"
            assert not used or packet.sequence_flags == TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    for track in tracks.values():
        assert not track.parent_uuid or tracks[track.parent_uuid].HasField("process")
    for packet in trace.packet:
        if packet.HasField("track_event"):
            counts = packet.track_event.type == TrackEvent.TYPE_COUNTER
            assert tracks[packet.track_event.track_uuid].HasField("counter") == counts
    return names, tracks


def _read_packets(path: Path) -> Timeline:
    """What Perfetto makes of the packets: sorted by time, of one moment in the order of the file."""
    trace = Trace.FromString(path.read_bytes())
    timeline = Timeline()
    names, tracks = _introduced(trace)
    of_processes = [track for track in tracks.values() if track.HasField("process")]
    for track in sorted(of_processes, key=lambda track: track.process.legacy_sort_index):
        assert track.process.pid not in timeline.processes
        timeline.processes[track.process.pid] = track.process.process_name
    for track in sorted(tracks.values(), key=lambda track: track.sibling_order_rank):
        if track.parent_uuid and not track.HasField("counter"):
            timeline.lanes.setdefault(tracks[track.parent_uuid].process.pid, []).append(track.name)

    def args(event: Any) -> Args:
        found: Args = {}
        for annotation in event.debug_annotations:
            kind = annotation.WhichOneof("value")
            value = getattr(annotation, kind)
            value = json.loads(value) if kind == "legacy_json_value" else value
            assert names["debug_annotation_names", annotation.name_iid] not in found
            found[names["debug_annotation_names", annotation.name_iid]] = value
        recorded = found.pop("args", {})  # those of recorded events stay one text
        return {**found, **recorded}

    stacks: dict[int, list[tuple[int, Any]]] = defaultdict(list)
    open_flows: dict[Any, Any] = {}
    done: dict[int, Slice] = {}
    pairs: list[tuple[str, int, int]] = []
    for packet in sorted(trace.packet, key=lambda packet: packet.timestamp):
        if not packet.HasField("track_event"):
            continue
        event, track = packet.track_event, tracks[packet.track_event.track_uuid]
        name = names.get(("event_names", event.name_iid), "")
        category = next((names["event_categories", iid] for iid in event.category_iids), "")
        rank = tracks[track.parent_uuid].process.pid if track.parent_uuid else -1
        stack = stacks[track.uuid]
        if event.type == TrackEvent.TYPE_COUNTER:
            value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
            timeline.counters[rank, track.name].append((packet.timestamp, float(value)))
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            stack.append((packet.timestamp, packet))
            for flow in event.flow_ids:
                assert flow not in open_flows, "one id, two arrows"
                open_flows[flow] = id(packet)
            pairs += [("last_arrival", open_flows[flow], id(packet)) for flow in event.terminating_flow_ids]
        elif event.type == TrackEvent.TYPE_SLICE_END:
            start, began = stack.pop()
            assert start <= packet.timestamp
            event = began.track_event
            done[id(began)] = Slice(
                rank,
                track.name,
                names["event_names", event.name_iid],
                next((names["event_categories", iid] for iid in event.category_iids), ""),
                start,
                packet.timestamp,
                args(event),
            )
        elif event.type == TrackEvent.TYPE_INSTANT:
            if rank < 0:
                timeline.about = args(event)
            else:
                timeline.marks.append(Mark(rank, track.name, name, packet.timestamp))
        elif stack:
            key = (category, name, event.legacy_event.unscoped_id)
            if event.legacy_event.phase == ord("s"):
                assert key not in open_flows, "one id, two arrows"
                open_flows[key] = id(stack[-1][1])
            elif key in open_flows:
                pairs.append((category, open_flows[key], id(stack[-1][1])))
    assert not any(stacks.values()), "a slice does not end"
    timeline.slices = list(done.values())
    timeline.arrows = [Arrow(category, done[leaves], done[arrives]) for category, leaves, arrives in pairs]
    return timeline
