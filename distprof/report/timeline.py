"""All ranks on one clock, as a Chrome trace for Perfetto: zones, collectives and, where recorded, operators."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import polars as pl

from distprof._version import __version__
from distprof.analyze.waits import match
from distprof.clock.shift import offsets_ns, shifted
from distprof.report import words
from distprof.report.lanes import DisjointLanes, NestingLanes
from distprof.report.window_events import microseconds, read_window, rebased, thread_names
from distprof.result import Group, Result
from distprof.run.files import open_atomic
from distprof.trace.load import Run
from distprof.trace.tables import Tables

# Chrome's names of colours, so that waiting and transfer stay apart also where names do not fit.
_WAIT = "thread_state_iowait"
_TRANSFER = "thread_state_running"
# Below our own lanes stand the operators' threads, the training thread first.
_TRAINING_OPERATORS = 10_000
_OTHER_OPERATORS = 20_000


def write_timeline(run: Run, result: Result, path: Path) -> None:
    """Write the timeline, rank after rank, atomically; compressed where `path` ends with `.gz`.

    Each rank is a process whose id is the rank. Times are microseconds since the earliest record, whose
    Unix time is `baseTimeNanoseconds`, less the offsets in `result.clock`. A trace that cannot be read is
    left out and named in `otherData.unreadable`.

    Raises:
        OSError: it cannot be written.
    """
    offsets = offsets_ns(result.clock)
    hosts = {row.rank: row.host for row in result.ranks}
    tables = shifted(run.tables, offsets)
    base = _earliest(tables)
    starts = {(rank, index): start for rank, index, start, _ in run.tables.windows.iter_rows()}
    calls = match(_by_arrival(tables), comparable=result.clock.verdict != "unaligned").with_row_index("row")
    lanes: dict[int, int] = {}
    flows = count(1)
    unreadable: list[str] = []
    with _opened(path) as file:
        output = _Output(file, base)
        for rank in tables.ranks:
            own = pl.col("rank") == rank
            process = _Process(rank, hosts.get(rank), base, output)
            _steps(process, tables.steps.filter(own))
            _zones(process, tables.zones.filter(own))
            lanes |= _collectives(process, calls.filter(own), tables.groups)
            threads = _Threads(process, str(tables.training_thread.get(rank)))
            for index, trace in sorted(run.trace_files.get(rank, {}).items()):
                try:
                    window = read_window(trace)
                except (OSError, ValueError) as error:
                    unreadable.append(words.clean(str(error)))
                    continue
                known_base = run.bases.get(rank, {}).get(index)
                window = window if known_base is None else replace(window, base=known_base)
                threads.names |= thread_names(window)
                origin = base + offsets.get(rank, 0)
                around = starts.get((rank, index), origin)
                for event in rebased(window, pid=rank, origin=origin, around=around, thread=threads, flow=flows):
                    output.emit(event)
        _arrows(output, calls, lanes, base, flows)
        output.close({"distprof": __version__, "run": words.clean(result.run.name), "unreadable": unreadable})


def _by_arrival(tables: Tables) -> Tables:
    """The tables with collectives that begin when the rank arrived: the kernel waits, and not what launched it."""
    arrived = pl.coalesce(tables.arrival, "created")
    return replace(tables, collectives=tables.collectives.with_columns(created=arrived))


def _earliest(tables: Tables) -> int:
    """The earliest record's time; 0 without any."""
    starts = [
        tables.collectives["created"].min(),
        *(table["start"].min() for table in (tables.steps, tables.zones, tables.windows, tables.events)),
    ]
    return min((start for start in starts if isinstance(start, int)), default=0)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with open_atomic(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        # Level 5 is six times as fast as the default, 9, and 10 % larger; without a time equal runs give equal bytes.
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=5, mtime=0) as compressed:
            yield compressed  # type: ignore[misc]


class _Output:
    """The file: events go out in batches."""

    def __init__(self, file: BinaryIO, base: int) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self._batch: list[bytes] = []
        self._separator = b""
        header = self._encoder.encode({"displayTimeUnit": "ms", "baseTimeNanoseconds": base})
        file.write(header[:-1] + b',"traceEvents":[\n')

    def emit(self, event: object) -> None:
        self._batch.append(self._encoder.encode(event))
        if len(self._batch) >= 10_000:
            self._flush()

    def _flush(self) -> None:
        if self._batch:
            self._file.write(self._separator + b",\n".join(self._batch))
            self._separator = b",\n"
            self._batch.clear()

    def close(self, other: dict[str, Any]) -> None:
        self._flush()
        self._file.write(b'\n],"otherData":' + self._encoder.encode(other) + b"}\n")


class _Process:
    """A rank: hands out lanes and puts slices on them. `origin` is the timeline's beginning on the rank's own clock."""

    def __init__(self, rank: int, host: str | None, origin: int, output: _Output) -> None:
        self.rank = rank
        self.origin = origin
        self.output = output
        self._lanes = 0
        self._metadata("process_name", 0, {"name": f"rank {rank}" + (f" · {words.name(host)}" if host else "")})
        self._metadata("process_sort_index", 0, {"sort_index": rank})

    def lane(self, name: str, order: int = 0) -> int:
        """A new lane; lanes stand by `order`, then as they were made."""
        self._lanes += 1
        self._metadata("thread_name", self._lanes, {"name": words.name(name)})
        self._metadata("thread_sort_index", self._lanes, {"sort_index": order + self._lanes})
        return self._lanes

    def slice(
        self,
        lane: int,
        name: str,
        category: str,
        *,
        start: int,
        end: int,
        args: dict[str, Any],
        colour: str | None = None,
    ) -> None:
        """A slice; times are Unix ns on the rank's own clock."""
        event = {
            "ph": "X",
            "name": name,
            "cat": category,
            **_place(self.rank, lane, start - self.origin),
            "dur": microseconds(end - start),
            "args": args,
        }
        if colour:
            event["cname"] = colour
        self.output.emit(event)

    def instant(self, lane: int, name: str, category: str, at: int) -> None:
        """A mark on a lane."""
        place = _place(self.rank, lane, at - self.origin)
        self.output.emit({"ph": "i", "s": "t", "name": name, "cat": category, **place})

    def _metadata(self, name: str, lane: int, args: dict[str, Any]) -> None:
        self.output.emit({"ph": "M", "name": name, "pid": self.rank, "tid": lane, "args": args})


class _LaneSet:
    """Lanes of one kind, made when they are first needed."""

    def __init__(self, process: _Process, name: str) -> None:
        self._process = process
        self._name = name
        self._lanes: list[int] = []

    def __getitem__(self, index: int) -> int:
        while len(self._lanes) <= index:
            number = len(self._lanes) + 1
            self._lanes.append(self._process.lane(self._name if number == 1 else f"{self._name} ({number})"))
        return self._lanes[index]


def _steps(process: _Process, steps: pl.DataFrame) -> None:
    lanes, placed = _LaneSet(process, "steps"), DisjointLanes()
    for row in steps.sort("start").iter_rows(named=True):
        lane = lanes[placed.place(row["start"], row["end"])]
        args = {"backwards": row["backwards"], "excluded": row["excluded"]}
        process.slice(lane, f"step {row['step']}", "step", start=row["start"], end=row["end"], args=args)


def _zones(process: _Process, zones: pl.DataFrame) -> None:
    for (thread,), own in sorted(zones.partition_by("thread", as_dict=True).items()):
        lanes = _LaneSet(process, "zones: training thread" if thread == 0 else f"zones: thread {thread}")
        placed = NestingLanes()
        for row in own.sort("start", "end", descending=[False, True]).iter_rows(named=True):
            kind, start, end = row["kind"], row["start"], row["end"]
            name = words.name(row["name"] or "")
            if kind == "step":
                process.instant(lanes[0], "distprof.step()", kind, start)
                continue
            label = name if kind == "zone" and name else f"{kind} ({name})" if name else kind
            process.slice(
                lanes[placed.place(start, end)], label, kind, start=start, end=end, args={"kind": kind, "name": name}
            )


def _collectives(process: _Process, calls: pl.DataFrame, groups: list[Group]) -> dict[int, int]:
    """Draw a rank's collectives; returns each one's lane by its row.

    A collective is a wait until the last rank that binds it has created it, then a transfer until its end.
    Where nobody is known to bind it, it is one slice.
    """
    lanes, placed = _LaneSet(process, "collectives"), DisjointLanes()
    used: dict[int, int] = {}
    for call in calls.sort("created", "row").iter_rows(named=True):
        created, bound, ended = call["created"], call["binds_until"], call["ended"]
        end = max(time for time in (created, bound, ended) if time is not None)
        lane = lanes[placed.place(created, end)]
        label = words.name(call["kind"]) + (f" bucket {call['bucket']}" if call["bucket"] is not None else "")
        args = {
            "kind": words.name(call["kind"]),
            "group": words.group_name(groups, call["group"]),
            "seq": call["seq"],
            "bytes": call["bytes"],
            "model": words.name(call["model"]) if call["model"] is not None else None,
            "bucket": call["bucket"],
            "step": call["step"],
            "last rank": call["last_rank"],
        }
        if bound is None:
            process.slice(lane, label, "collective", start=created, end=end, args=args)
        else:
            process.slice(lane, f"wait: {label}", "collective", start=created, end=bound, args=args, colour=_WAIT)
            if end > bound:
                process.slice(
                    lane, f"transfer: {label}", "collective", start=bound, end=end, args=args, colour=_TRANSFER
                )
        used[call["row"]] = lane
    return used


def _arrows(output: _Output, calls: pl.DataFrame, lanes: dict[int, int], base: int, flows: Iterator[int]) -> None:
    """Arrows from the last arrival of each collective to the transfers of the ranks that waited for it."""
    drawn = calls.filter(pl.col("ended") > pl.col("binds_until") + 1).drop_nulls(["group", "seq"])
    for _, members in drawn.group_by("group", "seq", "kind", maintain_order=True):
        rows = members.select("row", "rank", "binds_until", "last_rank").rows()
        row_of = {rank: row for row, rank, *_ in rows}
        for row, rank, bound, last in rows:
            if last == rank or last not in row_of:
                continue
            arrow = {"name": "last arrival", "cat": "last_arrival", "id": next(flows)}
            output.emit(arrow | {"ph": "s"} | _place(last, lanes[row_of[last]], bound - base))
            # Viewers drop an arrow that does not end after its beginning, be it by a nanosecond.
            output.emit(arrow | {"ph": "f", "bp": "e"} | _place(rank, lanes[row], bound + 1 - base))


def _place(rank: int, lane: int, at: int) -> dict[str, Any]:
    """Where an event stands: `at` is in ns since the timeline's beginning."""
    return {"pid": rank, "tid": lane, "ts": microseconds(at)}


class _Threads:
    """The lanes of a rank's operators, by the process and thread id that its traces call them by."""

    def __init__(self, process: _Process, training_thread: str) -> None:
        self._process = process
        self._training_thread = training_thread
        self._lanes: dict[tuple[str, str], int] = {}
        self.names: dict[tuple[str, str], str] = {}

    def __call__(self, thread: tuple[str, str]) -> int:
        if thread not in self._lanes:
            known = self.names.get(thread)
            name = f"operators: {known}" if known else " ".join(word for word in thread if word) or "events"
            training = thread[1] == self._training_thread
            self._lanes[thread] = self._process.lane(name, _TRAINING_OPERATORS if training else _OTHER_OPERATORS)
        return self._lanes[thread]
