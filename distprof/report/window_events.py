"""A rank's Kineto trace on its way into the timeline: events pass as they are but for times, threads and flow ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec
from msgspec import UNSET, Raw, UnsetType

from distprof.trace.chunks import EventChunks, NoTraceError
from distprof.trace.header import read_header

_SLICE = "X"
_FLOWS = frozenset("stf")
_KEPT = frozenset("Xstfi")
# What is longer, or further from its window, would stretch the timeline beyond use.
_DAY_NS = 86_400_000_000_000


class WindowEvent(msgspec.Struct, gc=False):
    """An event as it stands in the file: fields that are only passed on stay bytes."""

    ph: str = ""
    name: Raw | UnsetType = UNSET
    cat: Raw | UnsetType = UNSET
    pid: Raw | UnsetType = UNSET
    tid: Raw | UnsetType = UNSET
    ts: Raw | UnsetType = UNSET
    dur: Raw | UnsetType = UNSET
    s: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    bp: Raw | UnsetType = UNSET
    args: Raw | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class WindowTrace:
    """A Kineto trace. `base` is the Unix time in ns that its events' times count from."""

    events: list[WindowEvent]
    base: int


def read_window(path: Path) -> WindowTrace:
    """Read a Kineto trace; of a broken one, the events that are whole or could be mended.

    Raises:
        ValueError: it is no trace.
        OSError: it cannot be read.
    """
    chunks = EventChunks(path, WindowEvent, raw=True)
    try:
        events = [event for chunk in chunks for event in chunk.events]
    except NoTraceError as error:
        raise ValueError(f"{path.name}: {error}") from error
    return WindowTrace(events, read_header(chunks.header)[0].base or 0)


def rebased(
    trace: WindowTrace,
    *,
    pid: int,
    origin: int,
    around: int,
    thread: Callable[[tuple[str, str]], int],
    flow: Iterator[int],
) -> Iterator[WindowEvent]:
    """Slices, instants and flows of a trace as events of process `pid`; events without usable times are left out.

    Args:
        origin: the Unix time in ns, on the trace's own clock, that times shall count from.
        around: a Unix time in ns within the window; what is further from it than a day, or longer, is left out.
        thread: the lane for a thread of the trace, by its process and thread id as text.
        flow: new flow ids; flows of different traces must not share one.
    """
    process = Raw(str(pid).encode())
    flows: dict[tuple[bytes, bytes], Raw] = {}
    for event in trace.events:
        if event.ph not in _KEPT:
            continue
        start = nanoseconds(event.ts)
        if start is None or abs(trace.base + start - around) > _DAY_NS:
            continue
        if event.ph == _SLICE:
            length = nanoseconds(event.dur)
            if length is None or not 0 <= length < _DAY_NS:
                continue
            event.dur = microseconds(length)
        elif event.ph in _FLOWS:
            key = (_bytes(event.cat), _bytes(event.id))
            if key not in flows:
                flows[key] = Raw(str(next(flow)).encode())
            event.id = flows[key]
        event.ts = microseconds(trace.base + start - origin)
        event.tid = Raw(str(thread(thread_of(event))).encode())
        event.pid = process
        yield event


def thread_names(trace: WindowTrace) -> dict[tuple[str, str], str]:
    """What the trace calls its threads, by process and thread id."""
    names: dict[tuple[str, str], str] = {}
    for event in trace.events:
        if event.ph == "M" and _bytes(event.name) == b'"thread_name"' and isinstance(event.args, Raw):
            args = msgspec.json.decode(event.args)
            if isinstance(args, dict):
                names[thread_of(event)] = str(args.get("name") or "")
    return names


def thread_of(event: WindowEvent) -> tuple[str, str]:
    """An event's process and thread id as text, whether they are numbers or strings."""
    return _bytes(event.pid).decode().strip('"'), _bytes(event.tid).decode().strip('"')


def _bytes(value: Raw | UnsetType) -> bytes:
    return bytes(value) if isinstance(value, Raw) else b""


def nanoseconds(value: Raw | UnsetType) -> int | None:
    """A time in microseconds, a number or a string of any number of digits, as whole nanoseconds."""
    try:
        return int((Decimal(_bytes(value).decode().strip('"')) * 1000).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return None


def microseconds(value: int) -> Raw:
    """Nanoseconds as microseconds with three decimals: no digit is lost."""
    whole, rest = divmod(abs(value), 1000)
    return Raw(f"{'-' if value < 0 else ''}{whole}.{rest:03d}".encode())
