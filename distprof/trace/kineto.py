"""Reading a Kineto trace: only the fields that are used, typed, into columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from distprof.trace.chunks import EventChunks, NoTraceError
from distprof.trace.columns import Columns, Event
from distprof.trace.header import Header, read_header
from distprof.trace.notes import Note, RecordingError
from distprof.trace.workers import Advance, no_advance

# Before this, in 1973, no trace was recorded. Kineto's base is a multiple of a quarter of a year.
_EARLIEST_NS = 100_000_000_000_000_000
_BASE_NS = 7_889_238_000_000_000


@dataclass(frozen=True, slots=True)
class Trace:
    """One file, read. Its rank and window are for its reader to say.

    Attributes:
        events: FILE_EVENTS, in the order of `start`.
        calls: CALLS of these events.
        memory: MEMORY without rank and window.
        problems: (place, text): what is wrong with the file and what was done about it.
        cut: it ends before its end.
        processes: processes that ran operators: one, unless several wrote the file.
    """

    path: Path
    header: Header
    events: pl.DataFrame
    calls: pl.DataFrame
    memory: pl.DataFrame
    problems: list[tuple[str | None, str]]
    cut: bool
    processes: list[int]

    @property
    def lost_its_base(self) -> bool:
        """Its times do not count from 1970, and it does not say from when: torch writes that at the end."""
        return self.header.base is None and len(self.events) > 0 and int(self.events["start"][0]) < _EARLIEST_NS

    def later_by(self, ns: int) -> Trace:
        """The trace with times that are later by `ns`: what they count from was not told, or was wrong."""
        return replace(
            self,
            header=replace(self.header, base=(self.header.base or 0) + ns),
            events=self.events.with_columns(pl.col("start", "end") + ns),
            memory=self.memory.with_columns(pl.col("time") + ns),
        )


def read_trace(path: Path, advance: Advance = no_advance) -> Trace:
    """Read a trace, plain or gzipped, object or list.

    Only complete events count. An event without a thread number, or without a duration from 0 to a day, is left out.

    Raises:
        OSError: it cannot be read.
        NoTraceError: it is no trace, or several processes wrote it.
    """
    chunks = EventChunks(path, Event, advance=advance)
    columns = Columns()
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
    processes = _processes(events)
    if len(processes) > 1:
        these = ", ".join(map(str, processes[:5]))
        raise NoTraceError(f"it looks like several ranks wrote this file: processes {these} ran operators in it")
    memory = columns.memory(header.base or 0)
    return Trace(path, header, events, calls, memory, problems, chunks.cut is not None, processes)


def _processes(events: pl.DataFrame) -> list[int]:
    ran = pl.col("cat").is_in(["cpu_op", "user_annotation", "cuda_runtime"]) & (pl.col("process") >= 0)
    return sorted(events.select(pl.col("process").filter(ran).unique())["process"])


def read_kineto(
    path: Path, rank: int, opened: int | None = None, advance: Advance = no_advance
) -> tuple[Trace, list[Note]]:
    """Read one window's trace of a run directory.

    Args:
        opened: when its window opened, in Unix ns: this tells what times count from where a trace has lost that.

    Raises:
        RecordingError: the file cannot be used, or was recorded by another rank.
    """
    try:
        trace = read_trace(path, advance)
    except OSError as error:
        raise RecordingError(rank, path, None, f"cannot be read ({error.strerror}); check its permissions") from error
    except NoTraceError as error:
        raise RecordingError(rank, path, None, f"{error}; its rank is analysed without this window") from error
    if trace.header.rank not in (None, rank):
        text = f"it was recorded by rank {trace.header.rank}; give it the name of that rank again"
        raise RecordingError(rank, path, "$.distributedInfo.rank", text)
    if trace.lost_its_base and opened is not None:
        trace = trace.later_by(opened // _BASE_NS * _BASE_NS)
        trace.problems.append(("$.baseTimeNanoseconds", "it is lost and was taken from when the window opened"))
    return trace, [Note(rank, path, place, text) for place, text in trace.problems]


def placed(table: pl.DataFrame, rank: int, window: int, schema: dict[str, Any]) -> pl.DataFrame:
    """A table of one trace as a part of `schema`'s table of all ranks."""
    numbered = table.with_columns(rank=pl.lit(rank), window=pl.lit(window))
    return numbered.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _problems(chunks: EventChunks[Event]) -> list[tuple[str | None, str]]:
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
