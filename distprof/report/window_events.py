"""A rank's Kineto trace on its way into the timeline: events pass as they are but for times, threads and flow ids."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec
from msgspec import UNSET, Raw, UnsetType

_SLICE = "X"
_FLOWS = frozenset("stf")
_KEPT = frozenset("Xstfi")


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


class WindowTrace(msgspec.Struct):
    """A Kineto trace. `base` is the Unix time in ns that its events' times count from."""

    events: list[WindowEvent] = msgspec.field(name="traceEvents")
    base: int = msgspec.field(name="baseTimeNanoseconds", default=0)


def read_window(path: Path) -> WindowTrace:
    """Read a Kineto trace.

    Raises:
        ValueError: it is no valid trace: cut off, or not JSON.
        OSError: it cannot be read.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        data.decode()  # what stays bytes is checked to be JSON, but not to be UTF-8
        return msgspec.json.decode(data, type=WindowTrace, strict=False)
    except (EOFError, gzip.BadGzipFile, zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def rebased(
    trace: WindowTrace,
    *,
    pid: int,
    origin: int,
    thread: Callable[[tuple[str, str]], int],
    flow: Iterator[int],
) -> Iterator[WindowEvent]:
    """Slices, instants and flows of a trace as events of process `pid`; events without usable times are left out.

    Args:
        origin: the Unix time in ns, on the trace's own clock, that times shall count from.
        thread: the lane for a thread of the trace, by its process and thread id as text.
        flow: new flow ids; flows of different traces must not share one.
    """
    process = Raw(str(pid).encode())
    flows: dict[tuple[bytes, bytes], Raw] = {}
    for event in trace.events:
        if event.ph not in _KEPT:
            continue
        start = nanoseconds(event.ts)
        if start is None:
            continue
        if event.ph == _SLICE:
            length = nanoseconds(event.dur)
            if length is None or length < 0:
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
