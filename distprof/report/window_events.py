"""A rank's Kineto trace on its way into the timeline, chunk after chunk: times, threads and ids are made the timeline's
own, all else passes as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from distprof.report.lanes import Displaced, row_of
from distprof.trace.chunks import Chunk, EventChunks, NoTraceError
from distprof.trace.header import read_header
from distprof.trace.intervals import Mask, Times
from distprof.trace.workers import Advance, no_advance

SLICE = "X"
# Slices, their halves, marks, counters; flows and asynchronous slices, which have ids.
_WITH_IDS = frozenset("stfbne")
_KEPT = frozenset("XBEiIC") | _WITH_IDS
_METADATA = "M"
_ANNOTATION = "gpu_user_annotation"
_ROW = attrgetter("pid", "tid", "cat")
# What is longer, or further from its window, would stretch the timeline beyond use.
_DAY_NS = 86_400_000_000_000
# A float holds microseconds with three decimals exactly below this.
_EXACT_US = 2.0**43
_LATEST_US = 4.6e15
_LONGEST_US = 86_400e6
# Ids that operators, launches and kernels share. Quotes inside strings are escaped, so nothing else looks so.
_SHARED = [(re.compile(rb"%s\s*(?=\d)" % key), key) for key in (b'"correlation":', b'"External id":')]


class WindowEvent(msgspec.Struct, gc=False):
    """An event as it stands in the file; arguments are only passed on and stay bytes."""

    ph: str = ""
    id: Any = UNSET
    name: str | UnsetType = UNSET
    cat: str | UnsetType = UNSET
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | None = None
    dur: float | UnsetType | None = None
    s: Any = UNSET
    bp: Any = UNSET
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

    def flow(self, number: object) -> object:
        """The id of a flow or an asynchronous slice; to viewers a text is hexadecimal."""
        if type(number) is int:
            return int(f"{self.prefix}{number}") if number >= 0 else -int(f"{self.prefix}{-number}")
        text = str(number)
        sign = "0x" if text.startswith("0x") else ""
        return f"{sign}{self.prefix}{text.removeprefix(sign)}"

    def renamed(self, text: bytes) -> bytes:
        """JSON with the ids that operators, their launches and their kernels share."""
        for pattern, key in _SHARED:
            if key in text:
                text = pattern.sub(key + self._before, text)
        return text


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that are ready to be written, but for what their fields say of place and time.

    Attributes:
        slices: which of them are slices, with start and end in one event.
        process: of the timeline.
        lanes: number of each event's lane.
        start: ns since the timeline's beginning.
        length: ns; 0 for what is no slice.
        ids: what tells the ids in their arguments from other traces'.
    """

    events: list[WindowEvent]
    slices: Mask
    process: int
    lanes: Times
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
        advance: is told of the file's bytes as they are read.
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
    advance: Advance = no_advance


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
        rows = _Rows(window)
        for chunk in EventChunks(window.path, WindowEvent, raw=True, advance=window.advance):
            phases = [event.ph for event in chunk.events]
            if _METADATA in phases:
                names |= _thread_names(chunk.events)
            batch = _batch(window, rows, _usable(chunk, phases, base, window.around))
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


class _Usable(NamedTuple):
    """Events to be shown.

    Attributes:
        slices: which of them are slices.
        start: when they began, in Unix ns on the rank's own clock.
        length: how long they lasted, in ns; 0 for what is no slice.
    """

    events: list[WindowEvent]
    slices: Mask
    start: Times
    length: Times


class _Rows(dict[tuple[object, object, object], int]):
    """Numbers of what a trace puts on rows of their own: process, thread and category; there are few.

    Attributes:
        threads: by number.
        lanes: of each, by number.
        on_device: whether a device timed it, by number.
    """

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window
        self.threads: list[Thread] = []
        self.lanes: list[int] = []
        self.on_device: list[bool] = []

    def __missing__(self, key: tuple[object, object, object]) -> int:
        process, thread, category = key
        number = self[key] = len(self)
        self.threads.append(Thread(str(process), str(thread), category == _ANNOTATION))
        self.lanes.append(self._window.lane(self.threads[-1], 0))
        self.on_device.append((process, thread) in self._window.streams)
        return number


def _batch(window: Window, rows: _Rows, usable: _Usable) -> Batch:
    events, slices, start, length = usable
    of = np.fromiter(map(rows.__getitem__, map(_ROW, events)), dtype=np.int64, count=len(events))
    lanes = np.array(rows.lanes, dtype=np.int64)[of]
    for row, further in _displaced(window, events, start, length):
        lanes[row] = window.lane(rows.threads[int(of[row])], further)
    on_device = np.array(rows.on_device, dtype=np.bool_)[of]
    begin, end = (
        np.where(on_device, window.of_device(times), window.of_host(times)) - window.origin
        for times in (start, start + length)
    )
    touching = (end > window.span[0]) & (begin < window.span[1])
    if not touching.all():
        events = list(compress(events, touching.tolist()))
        slices, lanes, begin, end = slices[touching], lanes[touching], begin[touching], end[touching]
    for row in np.flatnonzero(~slices).tolist():
        event = events[row]
        if event.ph in _WITH_IDS and event.id is not UNSET:
            event.id = window.ids.flow(event.id)
    return Batch(events, slices, window.process, lanes, begin, end - begin, window.ids)


def _usable(chunk: Chunk[WindowEvent], phases: list[str], base: int, around: int) -> _Usable:
    """Find the events to be shown."""
    events = chunk.events
    if not _KEPT.issuperset(phases):
        events = [event for event in events if event.ph in _KEPT]
        phases = [event.ph for event in events]
    slices = np.array([phase == SLICE for phase in phases], dtype=np.bool_)
    ts = np.array([event.ts for event in events], dtype=np.float64)  # None becomes NaN
    dur = np.array([event.dur for event in events], dtype=np.float64)
    dur[~slices] = 0.0
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
        events = list(compress(events, usable.tolist()))
        slices, start, length = slices[usable], start[usable], length[usable]
    return _Usable(events, slices, start, length)


def _displaced(window: Window, events: list[WindowEvent], start: Times, length: Times) -> Iterator[tuple[int, int]]:
    """Rows of slices that cross others of their thread, and by how many lanes they are further down."""
    for row in np.flatnonzero(window.displaced.possible(start)).tolist():
        event, begin = events[row], int(start[row])
        of = row_of(event.cat, event.pid, event.tid) if event.ph == SLICE else None
        further = None if of is None else window.displaced.lanes.get((of, begin, begin + int(length[row])))
        if further is not None:
            yield row, further


def _thread_names(events: list[WindowEvent]) -> dict[tuple[str, str], str]:
    names: dict[tuple[str, str], str] = {}
    for event in events:
        if event.ph == _METADATA and event.name == "thread_name":
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
