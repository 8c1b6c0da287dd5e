"""Reading a Kineto trace: only the fields that are used, typed, into columns."""

from __future__ import annotations

import gzip
import re
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.intervals import Mask, Times
from distprof.trace.notes import Note, RecordingError
from distprof.trace.tables import EVENTS

# EVENTS and whether the event was over when the window closed; if not, `end` is where it was cut.
KINETO_EVENTS: dict[str, Any] = {**EVENTS, "finished": pl.Boolean}

Shape = TypeVar("Shape", bound=msgspec.Struct)

# A registered operator has a namespace: `aten::addmm`. Names without one are nodes of autograd, functions written in
# Python, annotations: what runs inside them may be the user's Python, or a wait.
NAMESPACE = "::"
WRAPPERS = ("autograd::", "torch::autograd::")
# Such an operator hands a collective to its backend, or waits for one.
COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms")

_INT64 = 2**63
# A float holds microseconds with three decimals exactly enough below this; kineto's base keeps `ts` below it.
_EXACT_US = 2.0**43


class _Arguments(msgspec.Struct, gc=False):
    finished: Any = True


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float | None = None
    dur: float | None = None
    tid: int | str | None = None
    args: _Arguments | None = None


class _DecimalEvent(msgspec.Struct, gc=False):
    ts: Decimal = Decimal(0)


class _DistributedInfo(msgspec.Struct):
    rank: int | None = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]
    baseTimeNanoseconds: int = 0
    distributedInfo: _DistributedInfo | None = None


class _DecimalTrace(msgspec.Struct):
    traceEvents: list[_DecimalEvent]


def read_kineto(path: Path, rank: int, window: int) -> tuple[pl.DataFrame, list[Note]]:
    """Read one window's trace, plain or gzipped, into a KINETO_EVENTS table in the order of `start`.

    Only complete events count. An event without a whole thread number or a duration of at least 0 is left out.

    Raises:
        RecordingError: the file is broken, is no Kineto trace, or was recorded by another rank.
    """
    data = _read(path, rank)
    # Not strict: some producers write numbers as strings.
    trace = _decode(data, _Trace, path, rank)
    recorded_by = trace.distributedInfo.rank if trace.distributedInfo else None
    if recorded_by not in (None, rank):
        text = f"it was recorded by rank {recorded_by}; give it the name of that rank again"
        raise RecordingError(rank, path, "$.distributedInfo.rank", text)
    complete = [row for row, event in enumerate(trace.traceEvents) if event.ph == "X" and event.cat != "Trace"]
    rows = [row for row in complete if _is_usable(trace.traceEvents[row])]
    notes = []
    if len(rows) < len(complete):
        text = f"{len(complete) - len(rows)} events have no whole thread number or no duration and were left out"
        notes.append(Note(rank, path, "$.traceEvents", text))
    events = [trace.traceEvents[row] for row in rows]
    ts = np.array([event.ts for event in events], dtype=np.float64)
    if ((np.abs(ts) >= _EXACT_US) & (ts != np.floor(ts))).any():
        exact = _decode(data, _DecimalTrace, path, rank).traceEvents
        relative = np.array([round(exact[row].ts * 1000) for row in rows], dtype=np.int64)
    else:
        relative = _nanoseconds(ts)
    start = relative + trace.baseTimeNanoseconds
    end = start + _nanoseconds(np.array([event.dur for event in events], dtype=np.float64))
    thread = np.array([event.tid for event in events], dtype=np.int64)
    cat = pl.Series([event.cat for event in events], dtype=pl.String)
    name = pl.Series([event.name for event in events], dtype=pl.String)
    table = pl.DataFrame(
        {
            "rank": np.full(len(events), rank),
            "window": np.full(len(events), window),
            "cat": cat,
            "name": name,
            "thread": thread,
            "start": start,
            "end": end,
            "leaf": _computing(cat, name, thread, start, end),
            "finished": [event.args is None or event.args.finished is not False for event in events],
        },
        schema=KINETO_EVENTS,
    )
    return table.sort("start", "end", descending=[False, True], maintain_order=True), notes


def _read(path: Path, rank: int) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        text = f"the gzip file is damaged ({error}); its rank is analysed without this window"
        raise RecordingError(rank, path, None, text) from error
    except OSError as error:
        raise RecordingError(rank, path, None, f"cannot be read ({error.strerror}); check its permissions") from error


def _is_usable(event: _Event) -> bool:
    return (
        event.ts is not None
        and event.dur is not None
        and 0 <= event.dur < _EXACT_US
        and type(event.tid) is int
        and -_INT64 <= event.tid < _INT64
    )


def _decode(data: bytes, shape: type[Shape], path: Path, rank: int) -> Shape:
    try:
        return msgspec.json.decode(data, type=shape, strict=False)
    except msgspec.DecodeError as error:
        match = re.search(r"byte \d+|\$[^`]*", str(error))
        place = match[0] if match else f"byte {len(data)}" if "truncated" in str(error) else None
        text = f"it is no whole Kineto trace ({error}); its rank is analysed without this window"
        raise RecordingError(rank, path, place, text) from error


def _nanoseconds(microseconds: npt.NDArray[np.float64]) -> Times:
    """Whole and broken part apart: their product with 1000 would not fit into a float."""
    whole = np.floor(microseconds)
    thousandths = np.rint((microseconds - whole) * 1000)
    result: Times = whole.astype(np.int64) * 1000 + thousandths.astype(np.int64)
    return result


def _computing(cat: pl.Series, name: pl.Series, thread: Times, start: Times, end: Times) -> Mask:
    """The outermost operators that compute, as `tables.EVENTS` defines them."""
    operator = (cat == "cpu_op").to_numpy()
    collective = operator & _begins_with(name, COLLECTIVES)
    candidate = operator & name.str.contains(NAMESPACE, literal=True).to_numpy() & ~_begins_with(name, WRAPPERS)
    found = np.zeros(len(name), dtype=np.bool_)
    for one in np.unique(thread[candidate]):
        rows = np.flatnonzero(candidate & (thread == one))
        calls = np.sort(start[collective & (thread == one)])
        without = np.searchsorted(calls, start[rows]) == np.searchsorted(calls, end[rows])
        rows = rows[without]
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        reach = np.maximum.accumulate(end[rows])
        found[rows[np.append(True, start[rows[1:]] >= reach[:-1])[: len(rows)]]] = True
    return found


def _begins_with(name: pl.Series, prefixes: tuple[str, ...]) -> Mask:
    found: Mask = np.logical_or.reduce([name.str.starts_with(prefix).to_numpy() for prefix in prefixes])
    return found
