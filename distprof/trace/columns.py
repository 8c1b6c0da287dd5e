"""The columns of a trace: only the fields that are used, typed, chunk after chunk."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from operator import attrgetter, or_
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.chunks import Chunk
from distprof.trace.growing import GrowingColumn, Texts
from distprof.trace.intervals import Mask, Times
from distprof.trace.numbers import NONE, floats, int_or_none, known, nanoseconds, number_in, whole
from distprof.trace.roots import root_of_inputs, root_of_record
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
    "bytes": pl.Int64,
    "shapes": pl.String,
}
# What producers tell of a collective beside an event: `row` is the event's place in FILE_EVENTS, `root` one among the
# members of the group.
CALLS: dict[str, Any] = {
    "row": pl.UInt32,
    "collective": pl.String,
    "group": pl.String,
    "desc": pl.String,
    "members": pl.String,
    "seq": pl.Int64,
    "elements": pl.Int64,
    "dtype": pl.String,
    "root": pl.Int64,
}

# A registered operator has a namespace: `aten::addmm`. Names without one are nodes of autograd, functions written in
# Python, annotations: what runs inside them may be the user's Python, or a wait.
NAMESPACE = "::"
WRAPPERS = ("autograd::", "torch::autograd::")
# Such an operator hands a collective to its backend, or waits for one.
COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms")
_C10D = "c10d::"  # operators that create one
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

# A float holds microseconds with three decimals exactly enough below this; kineto's base keeps `ts` below it.
_EXACT_US = 2.0**43
# No window is longer than a day, and no time later than in 2116.
_DAY_US = 86_400e6
_LATEST_US = 4.6e15
_LONGEST_NAME = 4096
# Of a file with more events, and with kernels, plain operators are left out: most events are operators, and where a
# device computes no analysis needs them.
_MOST_EVENTS = 2_000_000
_OPERATORS = ("cpu_op", "python_function")
_KERNEL = "kernel"


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
        "rank": "Rank",
        "inputs": "Concrete Inputs",
        "dims": "Input Dims",
        "types": "Input type",
        "bytes": "Bytes",
        "copied": "bytes",
        "address": "Addr",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_type": "Device Type",
        "device_id": "Device Id",
    },
):
    finished: Any = True
    device: Any = NONE
    stream: Any = NONE
    correlation: Any = NONE
    collective: Any = None
    group: Any = None
    group_id: Any = None
    desc: Any = None
    members: Any = None
    seq: Any = None
    elements: Any = None
    rank: Any = None
    inputs: msgspec.Raw = msgspec.Raw()
    dtype: Any = None
    dims: msgspec.Raw = msgspec.Raw()
    types: msgspec.Raw = msgspec.Raw()
    bytes: Any = NONE
    copied: Any = NONE
    address: Any = NONE
    allocated: Any = NONE
    reserved: Any = NONE
    device_type: Any = NONE
    device_id: Any = NONE


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: int | float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Arguments | None = None


class _DecimalEvent(msgspec.Struct, gc=False):
    ts: Decimal | None = None


_NO_ARGUMENTS = _Arguments()


_FILE_MEMORY: dict[str, Any] = {name: dtype for name, dtype in MEMORY.items() if name not in ("rank", "window")}
# Integers that stand in an event's arguments.
_OF_EVENTS = ("device", "stream", "correlation", "bytes")
_OF_MEMORY: dict[str, Callable[[_Arguments], Any]] = {
    "device_type": attrgetter("device_type"),
    "device": attrgetter("device_id"),
    **{name: attrgetter(name) for name in ("address", "bytes", "allocated", "reserved")},
}


class Columns:
    """Columns of a trace, chunk after chunk; times count from the trace's base."""

    def __init__(self) -> None:
        integers = ("thread", "start", "end", "process", *_OF_EVENTS)
        self._cat = Texts()
        self._name = Texts()
        self._shapes = Texts()
        self._columns = {
            "cat": GrowingColumn(np.uint32),
            "name": GrowingColumn(np.uint32),
            "shapes": GrowingColumn(np.uint32),
            "finished": GrowingColumn(np.bool_),
            **{name: GrowingColumn(np.int64) for name in integers},
        }
        self._memory = {name: GrowingColumn(np.int64) for name in _FILE_MEMORY}
        self._calls: list[tuple[Any, ...]] = []
        self._rows = 0
        self._unusable = 0
        self._far = 0
        self._open = 0
        self._long_names = 0
        self._left_out: int | None = None  # operators; None: they are kept
        self.seen = False  # an event of a Chrome trace

    def add(self, chunk: Chunk[Event]) -> None:
        """Add a chunk's events."""
        phases = {event.ph for event in chunk.events}
        self.seen = self.seen or bool(phases - {""})
        if "B" in phases:
            self._open += sum(event.ph == "B" for event in chunk.events)
        if "i" in phases:
            self._add_memory([event for event in chunk.events if event.ph == "i" and event.name == _MEMORY])
        complete = [event for event in chunk.events if event.ph == "X" and event.cat != "Trace"]
        if self._left_out is not None:
            before = len(complete)
            complete = [
                event for event in complete if event.cat not in _OPERATORS or event.name.startswith(COLLECTIVES)
            ]
            self._left_out += before - len(complete)
        if complete:
            self._add_events(complete, chunk)
        if self._left_out is None and self._rows > _MOST_EVENTS and _KERNEL in self._cat:
            self._leave_operators_out()

    def _add_events(self, complete: list[Event], chunk: Chunk[Event]) -> None:
        """Add the complete ones of a chunk's events."""
        times = [event.ts for event in complete]
        ts = floats(times)
        dur = np.array([event.dur for event in complete], dtype=np.float64)
        thread = whole([event.tid for event in complete], number_in)
        usable = (np.abs(ts) < _LATEST_US) & (dur >= 0) & (dur < _DAY_US) & (thread != NONE)
        if not usable.all():
            self._unusable += int(np.count_nonzero(~usable))
            complete = [complete[index] for index in np.flatnonzero(usable)]
            ts, dur, thread = ts[usable], dur[usable], thread[usable]
        start = nanoseconds(ts)
        if float in set(map(type, times)) and len(inexact := np.flatnonzero(np.abs(ts) >= _EXACT_US)):
            exact = msgspec.json.decode(chunk.data, type=list[_DecimalEvent], strict=False)
            row_of = {id(event): row for row, event in enumerate(chunk.events)}
            start[inexact] = [round((exact[row_of[id(complete[index])]].ts or 0) * 1000) for index in inexact]
        arguments = [event.args or _NO_ARGUMENTS for event in complete]
        self._add_calls(complete, arguments)
        self._rows += len(complete)
        columns: dict[str, npt.NDArray[Any]] = {
            "cat": self._cat.numbers([event.cat for event in complete]),
            "name": self._name.numbers([event.name for event in complete]),
            "shapes": self._shapes.numbers([str(args.dims, "utf-8") if args.dims else "" for args in arguments]),
            "thread": thread,
            "start": start,
            "end": start + nanoseconds(dur),
            "finished": np.array([args.finished is not False for args in arguments], dtype=np.bool_),
            "process": whole([event.pid for event in complete]),
            "device": whole([args.device for args in arguments]),
            "stream": whole([args.stream for args in arguments]),
            "correlation": whole([args.correlation for args in arguments]),
            "bytes": whole([args.copied for args in arguments]),
        }
        for name, values in columns.items():
            self._columns[name].add(values)

    def _leave_operators_out(self) -> None:
        """Leave plain operators out, from those that were read on."""
        cat, name = self._columns["cat"].values, self._columns["name"].values
        operator = np.array([text in _OPERATORS for text in self._cat], dtype=np.bool_)
        collective = np.array([text.startswith(COLLECTIVES) for text in self._name], dtype=np.bool_)
        kept = ~operator[cat] | collective[name]
        for column in self._columns.values():
            column.keep(kept)
        place = np.cumsum(kept) - 1
        self._calls = [(int(place[row]), *told) for row, *told in self._calls if kept[row]]
        self._left_out = int(np.count_nonzero(~kept))
        self._rows -= self._left_out

    def _add_calls(self, events: list[Event], arguments: list[_Arguments]) -> None:
        for row, args in enumerate(arguments):
            if args.collective is not None or args.group is not None:
                group = args.group if args.group is not None else args.group_id
                values = (args.collective, group, args.desc, args.members)
                texts = [None if value is None else str(value) for value in values]
                dtype = args.dtype if isinstance(args.dtype, str) else None
                numbers = int_or_none(args.seq), int_or_none(args.elements)
                root = root_of_record(args.collective, args.rank)
                self._calls.append((self._rows + row, *texts, *numbers, dtype, root))
            elif args.inputs and events[row].name.startswith(_C10D):
                root = root_of_inputs(events[row].name, args.inputs)
                if root is not None:
                    self._calls.append((self._rows + row, None, None, None, None, None, None, None, root))
            elif args.dims and events[row].name.startswith(SPANS):
                elements, dtype = _input(args)
                if elements is not None:
                    self._calls.append((self._rows + row, None, None, None, None, None, elements, dtype, None))

    def _add_memory(self, moments: list[Event]) -> None:
        """Add allocations and releases; one without a time or a size is left out."""
        time = floats([event.ts for event in moments])
        arguments = [event.args or _NO_ARGUMENTS for event in moments]
        columns = {name: whole(list(map(of, arguments))) for name, of in _OF_MEMORY.items()}
        usable = (np.abs(time) < _LATEST_US) & (columns["bytes"] != NONE)
        columns["time"] = nanoseconds(time)
        for name, values in columns.items():
            self._memory[name].add(values[usable])

    def tables(self, base: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Events and calls; times count from `base`."""
        start = self._columns.pop("start").values + base
        end = self._columns.pop("end").values + base
        near = _near(start)
        self._far = int(np.count_nonzero(~near))
        order = np.lexsort((-end, start))
        order = order[near[order]]

        def take(name: str) -> npt.NDArray[Any]:
            return self._columns.pop(name).values[order]  # one column after the other: all twice is much

        start, end, thread, cat, name = start[order], end[order], take("thread"), take("cat"), take("name")
        cats, names = _series(self._cat).replace(_CATEGORIES), _series(self._name)
        long = names.str.len_bytes() > _LONGEST_NAME
        if long.any():
            self._long_names = int(np.count_nonzero(long.to_numpy()[name]))
            names = names.str.head(_LONGEST_NAME)
        process = take("process")
        process[process == NONE] = -1
        events = {
            "leaf": _computing(
                operator=(cats == "cpu_op").to_numpy()[cat], names=names, name=name, thread=thread, start=start, end=end
            ),
            "cat": cats.gather(cat),
            "name": names.gather(name),
            "thread": thread,
            "start": start,
            "end": end,
            "finished": take("finished"),
            "process": process,
            "shapes": _series(self._shapes).replace("", None).gather(take("shapes")),
            **{name: known(take(name)) for name in _OF_EVENTS},
        }
        return pl.DataFrame(events, schema_overrides=FILE_EVENTS).select(list(FILE_EVENTS)), self._calls_at(order)

    def _calls_at(self, order: npt.NDArray[np.int64]) -> pl.DataFrame:
        """CALLS of the events that were taken in this order."""
        place = np.full(self._rows, -1)
        place[order] = np.arange(len(order))
        calls = pl.DataFrame(self._calls, schema=CALLS, orient="row")
        rows = place[calls["row"].to_numpy()]
        return calls.with_columns(row=pl.Series(rows)).filter(pl.col("row") >= 0).cast({"row": CALLS["row"]})

    def memory(self, base: int) -> pl.DataFrame:
        """MEMORY without rank and window."""
        columns = {name: column.values for name, column in self._memory.items()}
        times = {"time": columns.pop("time") + base}
        table = pl.DataFrame(times | {name: known(values) for name, values in columns.items()}, schema=_FILE_MEMORY)
        return table.sort("time")

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
        if self._left_out:
            text = f"it has more than {_MOST_EVENTS} events: {self._left_out} operators of the host were left out"
            problems.append(("$.traceEvents", text))
        if self._long_names:
            problems.append(("$.traceEvents", f"{self._long_names} names were cut to {_LONGEST_NAME} characters"))
        return problems


def _series(texts: Texts) -> pl.Series:
    return pl.Series(list(texts), dtype=pl.String)


def _near(start: Times) -> Mask:
    """Which times lie within a day of the (lower) median."""
    if not len(start):
        return np.empty(0, dtype=np.bool_)
    middle = (len(start) - 1) // 2
    near: Mask = np.abs(start - np.partition(start, middle)[middle]) < _DAY_US * 1000
    return near


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


def _computing(
    *, operator: Mask, names: pl.Series, name: npt.NDArray[np.uint32], thread: Times, start: Times, end: Times
) -> Mask:
    """The outermost operators that compute, as `tables.EVENTS` defines them, of events in the order of their start.

    Args:
        operator: which events are operators.
        names: the text for each number in `name`.
    """
    computes = names.str.contains(NAMESPACE, literal=True) & ~_begins_with(names, WRAPPERS)
    collective = operator & _begins_with(names, COLLECTIVES).to_numpy()[name]
    candidate = operator & computes.to_numpy()[name]
    found = np.zeros(len(name), dtype=np.bool_)
    for one in np.unique(thread[candidate]):
        rows = np.flatnonzero(candidate & (thread == one))
        calls = start[collective & (thread == one)]
        rows = rows[np.searchsorted(calls, start[rows]) == np.searchsorted(calls, end[rows])]
        reach = np.maximum.accumulate(end[rows])
        found[rows[np.append(True, start[rows[1:]] >= reach[:-1])[: len(rows)]]] = True
    return found


def _begins_with(texts: pl.Series, prefixes: tuple[str, ...]) -> pl.Series:
    return reduce(or_, (texts.str.starts_with(prefix) for prefix in prefixes))
