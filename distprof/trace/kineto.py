"""Reading a Kineto trace: only the fields that are used, typed, into columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.chunks import Chunk, EventChunks, NoTraceError
from distprof.trace.header import Header, read_header
from distprof.trace.intervals import Mask, Times
from distprof.trace.notes import Note, RecordingError
from distprof.trace.tables import EVENTS, MEMORY

# EVENTS and whether the event was over when the window closed; if not, `end` is where it was cut.
KINETO_EVENTS: dict[str, Any] = {**EVENTS, "finished": pl.Boolean}
# The events of one file. `process` is -1 for what is no number. A kernel shares `correlation` with the call that
# launched it.
FILE_EVENTS: dict[str, Any] = {
    **{name: dtype for name, dtype in KINETO_EVENTS.items() if name not in ("rank", "window")},
    "process": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "correlation": pl.Int64,
}
# What producers tell of a collective beside an event: `row` is the event's place in FILE_EVENTS.
CALLS: dict[str, Any] = {
    "row": pl.UInt32,
    "collective": pl.String,
    "group": pl.String,
    "desc": pl.String,
    "members": pl.String,
    "seq": pl.Int64,
    "elements": pl.Int64,
    "dtype": pl.String,
}

# A registered operator has a namespace: `aten::addmm`. Names without one are nodes of autograd, functions written in
# Python, annotations: what runs inside them may be the user's Python, or a wait.
NAMESPACE = "::"
WRAPPERS = ("autograd::", "torch::autograd::")
# Such an operator hands a collective to its backend, or waits for one.
COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms")
# Spans of a collective, which tell its size where no other event does.
SPANS = ("gloo:", "nccl:")
# torch before 1.12 wrote other categories; MTIA has its own for what runs on the device.
_CATEGORIES = {
    "mtia_ccp_events": "kernel",
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
_MEMORY = "[memory]"

_INT64 = 2**63
_NONE = -(2**62)
# A float holds microseconds with three decimals exactly enough below this; kineto's base keeps `ts` below it.
_EXACT_US = 2.0**43
# No window is longer than a day, and no time later than in 2116.
_DAY_US = 86_400e6
_LATEST_US = 4.6e15
# Before this, in 1973, no trace was recorded. Kineto's base is a multiple of a quarter of a year.
_EARLIEST_NS = 100_000_000_000_000_000
_BASE_NS = 7_889_238_000_000_000
_DECIMALS = re.compile(rb'"ts"\s*:\s*"?-?\d+\.\d*[1-9]')
_LONGEST_NAME = 4096


class _Arguments(
    msgspec.Struct,
    gc=False,
    rename={
        "collective": "Collective name",
        "group": "Process Group Name",
        "group_id": "Process Group ID",
        "desc": "Process Group Description",
        "members": "Process Group Ranks",
        "seq": "Seq",
        "elements": "In msg nelems",
        "dims": "Input Dims",
        "types": "Input type",
        "bytes": "Bytes",
        "address": "Addr",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_type": "Device Type",
        "device_id": "Device Id",
    },
):
    finished: Any = True
    device: Any = None
    stream: Any = None
    correlation: Any = None
    collective: Any = None
    group: Any = None
    group_id: Any = None
    desc: Any = None
    members: Any = None
    seq: Any = None
    elements: Any = None
    dtype: Any = None
    dims: msgspec.Raw = msgspec.Raw()
    types: msgspec.Raw = msgspec.Raw()
    bytes: Any = None
    address: Any = None
    allocated: Any = None
    reserved: Any = None
    device_type: Any = None
    device_id: Any = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Arguments | None = None


class _DecimalEvent(msgspec.Struct, gc=False):
    ts: Decimal | None = None


_NO_ARGUMENTS = _Arguments()


@dataclass(frozen=True, slots=True)
class Trace:
    """One file, read. Its rank and window are for its reader to say.

    Attributes:
        events: FILE_EVENTS, in the order of `start`.
        calls: CALLS of these events.
        memory: MEMORY without rank and window.
        problems: (place, text): what is wrong with the file and what was done about it.
        cut: it ends before its end.
    """

    path: Path
    header: Header
    events: pl.DataFrame
    calls: pl.DataFrame
    memory: pl.DataFrame
    problems: list[tuple[str | None, str]]
    cut: bool

    @property
    def processes(self) -> list[int]:
        """Processes that ran operators: one, unless several wrote the file."""
        host = self.events.filter(pl.col("cat").is_in(["cpu_op", "user_annotation", "cuda_runtime"]))
        return sorted(host.filter(pl.col("process") >= 0)["process"].unique())

    @property
    def lost_its_base(self) -> bool:
        """Its times do not count from 1970, and it does not say from when: torch writes that at the end."""
        return self.header.base is None and len(self.events) > 0 and int(self.events["start"][0]) < _EARLIEST_NS

    def counted_from(self, base: int) -> Trace:
        """The trace with times that count from `base`, in Unix ns."""
        return replace(
            self,
            header=replace(self.header, base=base),
            events=self.events.with_columns(pl.col("start", "end") + base),
            memory=self.memory.with_columns(pl.col("time") + base),
        )


def read_trace(path: Path) -> Trace:
    """Read a trace, plain or gzipped, object or list.

    Only complete events count. An event without a thread number, or without a duration from 0 to a day, is left out.

    Raises:
        OSError: it cannot be read.
        NoTraceError: it is no trace, or several processes wrote it.
    """
    chunks = EventChunks(path, _Event)
    columns = _Columns()
    for chunk in chunks:
        columns.add(chunk)
    if not columns.seen and (chunks.kept or chunks.dropped or chunks.is_list):
        raise NoTraceError("none of its entries is an event of a Chrome trace")
    header, whole = read_header(chunks.header)
    problems = [*_problems(chunks), *header.problems]
    if not whole and chunks.cut is None:
        problems.append(("header", "it is broken; rank, world size and base were searched for"))
    events, calls = columns.tables(header.base or 0)
    problems += columns.problems()
    trace = Trace(path, header, events, calls, columns.memory(header.base or 0), problems, chunks.cut is not None)
    if len(trace.processes) > 1:
        these = ", ".join(map(str, trace.processes[:5]))
        raise NoTraceError(f"it looks like several ranks wrote this file: processes {these} ran operators in it")
    return trace


def read_kineto(path: Path, rank: int, opened: int | None = None) -> tuple[Trace, list[Note]]:
    """Read one window's trace of a run directory.

    Args:
        opened: when its window opened, in Unix ns: this tells what times count from where a trace has lost that.

    Raises:
        RecordingError: the file cannot be used, or was recorded by another rank.
    """
    try:
        trace = read_trace(path)
    except OSError as error:
        raise RecordingError(rank, path, None, f"cannot be read ({error.strerror}); check its permissions") from error
    except NoTraceError as error:
        raise RecordingError(rank, path, None, f"{error}; its rank is analysed without this window") from error
    if trace.header.rank not in (None, rank):
        text = f"it was recorded by rank {trace.header.rank}; give it the name of that rank again"
        raise RecordingError(rank, path, "$.distributedInfo.rank", text)
    if trace.lost_its_base and opened is not None:
        trace = trace.counted_from(opened // _BASE_NS * _BASE_NS)
        trace.problems.append(("$.baseTimeNanoseconds", "it is lost and was taken from when the window opened"))
    return trace, [Note(rank, path, place, text) for place, text in trace.problems]


def placed(table: pl.DataFrame, rank: int, window: int, schema: dict[str, Any]) -> pl.DataFrame:
    """A table of one trace as a part of `schema`'s table of all ranks."""
    numbered = table.with_columns(rank=pl.lit(rank), window=pl.lit(window))
    return numbered.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _problems(chunks: EventChunks[_Event]) -> list[tuple[str | None, str]]:
    problems: list[tuple[str | None, str]] = []
    place = None if chunks.first_broken is None else f"byte {chunks.first_broken}"
    if chunks.repaired:
        text = f"{chunks.repaired} events were not valid JSON (quotes, backslashes, NaN, bytes) and were repaired"
        problems.append((place, text))
    if chunks.dropped:
        problems.append((place, f"{chunks.dropped} events are broken and were left out"))
    if chunks.damage is not None:
        problems.append((None, chunks.damage))
    if chunks.cut is not None:
        text = f"it is truncated, as when its process was killed: {chunks.kept} whole events were kept"
        problems.append((f"byte {chunks.cut}", text))
    return problems


class _Columns:
    """Columns of a trace, chunk after chunk; times count from the trace's base."""

    def __init__(self) -> None:
        self._parts: dict[str, list[npt.NDArray[Any]]] = {
            name: [] for name in ("start", "length", "thread", "process", "device", "stream", "correlation", "finished")
        }
        self._cat: list[str] = []
        self._name: list[str] = []
        self._calls: list[tuple[Any, ...]] = []
        self._memory: list[tuple[Any, ...]] = []
        self._unusable = 0
        self._far = 0
        self._open = 0
        self._long_names = 0
        self.seen = 0

    def add(self, chunk: Chunk[_Event]) -> None:
        """Add a chunk's events."""
        complete, rows = [], []
        for row, event in enumerate(chunk.events):
            if event.ph == "X":
                if event.cat != "Trace":
                    complete.append(event)
                    rows.append(row)
            elif event.ph == "B":
                self._open += 1
            elif event.name == _MEMORY and event.ph == "i" and event.args is not None and event.ts is not None:
                self._add_memory(event)
            self.seen += event.ph != ""
        if not complete:
            return
        ts = np.array([event.ts for event in complete], dtype=np.float64)
        dur = np.array([event.dur for event in complete], dtype=np.float64)
        thread = _whole([_number_in(event.tid) for event in complete])
        usable = (np.abs(ts) < _LATEST_US) & (dur >= 0) & (dur < _DAY_US) & (thread != _NONE)
        self._unusable += int(np.count_nonzero(~usable))
        ts[~usable], dur[~usable] = 0, 0
        start = _nanoseconds(ts)
        inexact = np.flatnonzero(np.abs(ts) >= _EXACT_US)
        if len(inexact) and _DECIMALS.search(chunk.data):
            exact = msgspec.json.decode(chunk.data, type=list[_DecimalEvent], strict=False)
            start[inexact] = [round((exact[rows[index]].ts or 0) * 1000) for index in inexact]
        chosen = [event for event, good in zip(complete, usable.tolist(), strict=True) if good]
        arguments = [event.args or _NO_ARGUMENTS for event in chosen]
        self._add_calls(chosen)
        self._cat += [event.cat for event in chosen]
        self._name += [event.name for event in chosen]
        for name, values in {
            "start": start[usable],
            "length": _nanoseconds(dur[usable]),
            "thread": thread[usable],
            "process": _whole([event.pid for event in chosen], missing=-1),
            "device": _whole([args.device for args in arguments]),
            "stream": _whole([args.stream for args in arguments]),
            "correlation": _whole([args.correlation for args in arguments]),
            "finished": np.array([args.finished is not False for args in arguments], dtype=np.bool_),
        }.items():
            self._parts[name].append(values)

    def _add_calls(self, chosen: list[_Event]) -> None:
        first = len(self._name)
        for row, event in enumerate(chosen, first):
            args = event.args
            if args is None:
                continue
            if args.collective is not None or args.group is not None:
                group = args.group if args.group is not None else args.group_id
                values = (args.collective, group, args.desc, args.members)
                texts = [None if value is None else str(value) for value in values]
                dtype = args.dtype if isinstance(args.dtype, str) else None
                self._calls.append((row, *texts, _int(args.seq), _int(args.elements), dtype))
            elif event.name.startswith(SPANS):
                elements, dtype = _input(args)
                if elements is not None:
                    self._calls.append((row, None, None, None, None, None, elements, dtype))

    def _add_memory(self, event: _Event) -> None:
        args = event.args or _NO_ARGUMENTS
        size = _int(args.bytes)
        ts = event.ts
        if ts is None or size is None or not abs(ts) < _LATEST_US:
            return
        kind, number = _int(args.device_type), _int(args.device_id)
        row = (ts, kind, number, _int(args.address), size, _int(args.allocated), _int(args.reserved))
        self._memory.append(row)

    def tables(self, base: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Events and calls; times count from `base`."""
        column = {name: np.concatenate(parts) if parts else np.empty(0) for name, parts in self._parts.items()}
        start = column["start"].astype(np.int64) + base
        thread = column["thread"].astype(np.int64)
        near = _near(start)
        self._far = int(np.count_nonzero(~near))
        cat = pl.Series(self._cat, dtype=pl.String).replace(_CATEGORIES)
        name = pl.Series(self._name, dtype=pl.String)
        long = name.str.len_bytes() > _LONGEST_NAME
        if long.any():
            self._long_names = int(long.sum())
            name = name.str.head(_LONGEST_NAME)
        end = start + column["length"].astype(np.int64)
        events = pl.DataFrame(
            {
                "cat": cat,
                "name": name,
                "thread": thread,
                "start": start,
                "end": end,
                "leaf": _computing(cat, name, thread, start, end),
                **{key: column[key] for key in ("finished", "process", "device", "stream", "correlation")},
            },
            schema=FILE_EVENTS,
        )
        unknown = pl.col("device", "stream", "correlation")
        events = (
            events.with_columns(pl.when(unknown != _NONE).then(unknown))
            .with_row_index("row")
            .filter(pl.Series(near))
            .sort("start", "end", descending=[False, True], maintain_order=True)
        )
        order = events.select("row").with_row_index("place")
        calls = pl.DataFrame(self._calls, schema=CALLS, orient="row")
        calls = calls.join(order, on="row", how="inner", maintain_order="left")
        return events.drop("row"), calls.with_columns(row=pl.col("place")).drop("place")

    def memory(self, base: int) -> pl.DataFrame:
        """MEMORY without rank and window."""
        schema = {name: dtype for name, dtype in MEMORY.items() if name not in ("rank", "window")}
        time = _nanoseconds(np.array([row[0] for row in self._memory], dtype=np.float64)) + base
        rows = [(int(at), *row[1:]) for at, row in zip(time, self._memory, strict=True)]
        return pl.DataFrame(rows, schema=schema, orient="row").sort("time")

    def problems(self) -> list[tuple[str | None, str]]:
        """What was left out of the tables."""
        counted = {
            "have no thread number, or no duration from 0 to a day": self._unusable,
            "only begin and have no duration": self._open,
            "lie more than a day from the others": self._far,
        }
        problems: list[tuple[str | None, str]] = [
            ("$.traceEvents", f"{number} events {what} and were left out") for what, number in counted.items() if number
        ]
        if self._long_names:
            problems.append(("$.traceEvents", f"{self._long_names} names were cut to {_LONGEST_NAME} characters"))
        return problems


def _near(start: Times) -> Mask:
    """Which times lie within a day of the (lower) median."""
    if not len(start):
        return np.empty(0, dtype=np.bool_)
    middle = (len(start) - 1) // 2
    near: Mask = np.abs(start - np.partition(start, middle)[middle]) < _DAY_US * 1000
    return near


def _whole(values: Sequence[Any], missing: int = _NONE) -> Times:
    """Numbers as int64; what is none, or too large, is `missing`."""
    fitting = [value if type(value) is int and -_INT64 <= value < _INT64 else missing for value in values]
    return np.array(fitting, dtype=np.int64)


def _number_in(thread: object) -> object:
    """A thread's number; some producers write a text with it: `stream 7`."""
    if isinstance(thread, str):
        number = thread.removeprefix("stream").strip()
        return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None
    return thread


def _int(value: Any) -> int | None:
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


def _input(args: _Arguments) -> tuple[int | None, str | None]:
    """Elements and type of a span's inputs, where shapes were recorded."""
    try:
        dims = msgspec.json.decode(args.dims, type=list[list[int]])
        types = msgspec.json.decode(args.types, type=list[str])
    except (msgspec.MsgspecError, RecursionError):
        return None, None
    if not dims or not types or len(set(types)) > 1:
        return None, None
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in dims), types[0]


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
