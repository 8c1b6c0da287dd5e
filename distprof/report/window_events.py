"""A rank's Kineto trace on its way into the timeline, chunk after chunk: times, threads and ids are made the timeline's
own, all else passes as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from distprof.report.lanes import Displaced, row_of
from distprof.trace.chunks import Chunk, EventChunks, NoTraceError
from distprof.trace.header import read_header
from distprof.trace.intervals import Mask, Times

SLICE = "X"
# Slices, their halves, marks, counters; flows and asynchronous slices, which have ids.
_WITH_IDS = frozenset("stfbne")
_KEPT = frozenset("XBEiIC") | _WITH_IDS
_METADATA = "M"
_ANNOTATION = "gpu_user_annotation"
# What is longer, or further from its window, would stretch the timeline beyond use.
_DAY_NS = 86_400_000_000_000
# A float holds microseconds with three decimals exactly below this.
_EXACT_US = 2.0**43
_LATEST_US = 4.6e15
_LONGEST_US = 86_400e6
# Ids that operators, launches and kernels share. Quotes inside strings are escaped, so nothing else looks so.
_SHARED = [(re.compile(rb'"%s":\s*(?=\d)' % key), b'"%s":' % key) for key in (b"correlation", b"External id")]


class WindowEvent(msgspec.Struct, gc=False):
    """An event as it stands in the file: fields that are only passed on stay bytes."""

    ph: str = ""
    id: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET
    cat: str | UnsetType = UNSET
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | None = None
    dur: float | UnsetType | None = None
    s: Raw | UnsetType = UNSET
    bp: Raw | UnsetType = UNSET
    args: Raw | UnsetType = UNSET


class _ExactTime(msgspec.Struct, gc=False):
    ts: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Ids:
    """How the ids of one trace are told from all others': by a prefix of digits. All prefixes are equally long, so two
    different ids, or those of two traces, are never made one, however large they are."""

    prefix: str
    _before: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_before", self.prefix.encode())

    def flow(self, text: bytes) -> Raw:
        """The id of a flow or an asynchronous slice as it stands in JSON; to viewers a text is hexadecimal."""
        if text.isdigit():
            return Raw(self._before + text)
        sign = next((sign for sign in (b'"0x', b'"', b"-") if text.startswith(sign)), b"")
        return Raw(sign + self._before + text[len(sign) :])

    def renamed(self, text: bytes) -> bytes:
        """JSON with the ids that operators, their launches and their kernels share."""
        for pattern, key in _SHARED:
            text = pattern.sub(key + self._before, text)
        return text


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that are ready to be written, but for what their fields say of place and time.

    Attributes:
        process: of the timeline.
        lanes: number of each event's lane.
        start: ns since the timeline's beginning.
        length: ns; 0 for what is no slice.
        ids: what tells the ids in their arguments from other traces'.
    """

    events: list[WindowEvent]
    process: int
    lanes: list[int]
    start: Times
    length: Times
    ids: Ids


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread or stream of a trace; what annotates a stream has a row of its own."""

    process: str
    thread: str
    annotations: bool


@dataclass(frozen=True, slots=True)
class Window:
    """How a rank's trace becomes a part of the timeline.

    Attributes:
        base: Unix ns that its times count from; None: what its header says.
        around: a Unix time in ns within the window; what is further from it than a day, or longer, is left out.
        of_host, of_device: from Unix ns on the rank's own clock, or its device's, to those of the timeline's.
        origin: the timeline's beginning, in Unix ns on its clock.
        streams: devices and streams, by which events are known that a device timed.
        span: what does not touch this is left out; ns since the timeline's beginning.
        process: of the timeline.
        ids: see `Ids`.
        displaced: slices that cross others of their thread.
        lane: the lane's number, by thread and, for displaced slices, by how many lanes further down.
    """

    path: Path
    base: int | None
    around: int
    of_host: Callable[[Times], Times]
    of_device: Callable[[Times], Times]
    origin: int
    streams: Set[tuple[object, object]]
    span: tuple[int, int]
    process: int
    ids: Ids
    displaced: Displaced
    lane: Callable[[Thread, int], int]


def batches(window: Window, names: dict[tuple[str, str], str]) -> Iterator[Batch]:
    """Read a trace's events; of a broken one, those that are whole or could be mended. Those without usable times are
    left out.

    Args:
        names: what the trace calls its threads, by process and thread, is added here.

    Raises:
        ValueError: it is no trace.
        OSError: it cannot be read.
    """
    try:
        base = _base(window.path) if window.base is None else window.base
        for chunk in EventChunks(window.path, WindowEvent, raw=True):
            names |= _thread_names(chunk.events)
            batch = _batch(window, chunk, base)
            _rename(batch)
            if batch.events:
                yield batch
    except NoTraceError as error:
        raise ValueError(f"{window.path.name}: {error}") from error


def _base(path: Path) -> int:
    """What a trace's times count from; it may say that at its end."""
    chunks = EventChunks(path, _ExactTime)
    for _ in chunks:
        pass
    return read_header(chunks.header)[0].base or 0


def _batch(window: Window, chunk: Chunk[WindowEvent], base: int) -> Batch:
    events, start, length = _usable(chunk, base, window.around)
    lanes, on_device = _lanes(window, events, start, length)
    begin, end = (
        np.where(on_device, window.of_device(times), window.of_host(times)) - window.origin
        for times in (start, start + length)
    )
    touching = (end > window.span[0]) & (begin < window.span[1])
    if not touching.all():
        rows = np.flatnonzero(touching).tolist()
        events, lanes = [events[row] for row in rows], [lanes[row] for row in rows]
        begin, end = begin[rows], end[rows]
    return Batch(events, window.process, lanes, begin, end - begin, window.ids)


def _usable(chunk: Chunk[WindowEvent], base: int, around: int) -> tuple[list[WindowEvent], Times, Times]:
    """Events to be shown, when they began in Unix ns on the rank's own clock, and how long they lasted in ns."""
    events = [event for event in chunk.events if event.ph in _KEPT]
    ts = np.array([event.ts for event in events], dtype=np.float64)  # None becomes NaN
    dur = np.array([event.dur if event.ph == SLICE else 0.0 for event in events], dtype=np.float64)
    usable = (np.abs(ts) < _LATEST_US) & (dur >= 0) & (dur < _LONGEST_US)
    ts[~usable], dur[~usable] = 0, 0
    start, length = _whole_ns(ts), _whole_ns(dur)
    if (np.abs(ts) >= _EXACT_US).any() and any(type(event.ts) is float for event in events):
        every = zip(chunk.events, msgspec.json.decode(chunk.data, type=list[_ExactTime], strict=False), strict=True)
        exact = [exact.ts for event, exact in every if event.ph in _KEPT]
        start[usable] = [round((exact[row] or 0) * 1000) for row in np.flatnonzero(usable)]
    start += base
    usable &= np.abs(start - around) < _DAY_NS
    if not usable.all():
        events = [event for event, fits in zip(events, usable.tolist(), strict=True) if fits]
        start, length = start[usable], length[usable]
    return events, start, length


def _rename(batch: Batch) -> None:
    for event in batch.events:
        if event.ph in _WITH_IDS and isinstance(event.id, Raw):
            event.id = batch.ids.flow(bytes(event.id))


def _lanes(window: Window, events: list[WindowEvent], start: Times, length: Times) -> tuple[list[int], Mask]:
    """The number of each event's lane, and whether a device timed it."""
    codes: dict[tuple[object, object, bool], int] = {}
    keys = [(event.pid, event.tid, event.cat == _ANNOTATION) for event in events]
    found = [codes.setdefault(key, len(codes)) for key in keys]
    threads = [Thread(str(process), str(thread), annotates) for process, thread, annotates in codes]
    numbers = [window.lane(thread, 0) for thread in threads]
    on_device = np.array([key[:2] in window.streams for key in codes], dtype=np.bool_)
    lanes = [numbers[code] for code in found]
    for row in np.flatnonzero(window.displaced.possible(start)).tolist():
        event, begin = events[row], int(start[row])
        of = row_of(event.cat, event.pid, event.tid) if event.ph == SLICE else None
        further = None if of is None else window.displaced.lanes.get((of, begin, begin + int(length[row])))
        if further is not None:
            lanes[row] = window.lane(threads[found[row]], further)
    return lanes, on_device[found]


def _thread_names(events: list[WindowEvent]) -> dict[tuple[str, str], str]:
    names: dict[tuple[str, str], str] = {}
    for event in events:
        if event.ph == _METADATA and isinstance(event.name, Raw) and bytes(event.name) == b'"thread_name"':
            args = msgspec.json.decode(event.args) if isinstance(event.args, Raw) else None
            if isinstance(args, dict):
                names[str(event.pid), str(event.tid)] = str(args.get("name") or "")
    return names


def _whole_ns(microseconds: np.ndarray) -> Times:
    """Whole and broken part apart: their product with 1000 would not fit into a float."""
    whole = np.floor(microseconds)
    thousandths = np.rint((microseconds - whole) * 1000)
    result: Times = whole.astype(np.int64) * 1000 + thousandths.astype(np.int64)
    return result
