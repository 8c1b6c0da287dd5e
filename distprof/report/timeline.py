"""All ranks on one clock, for Perfetto: steps, findings, zones, collectives, curves and, where recorded, operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl
from isal import igzip

from distprof._version import __version__
from distprof.analyze.waits import match
from distprof.clock.shift import corrections, shifted
from distprof.report import words
from distprof.report.chrome import ChromeWriter
from distprof.report.drawing import Writer
from distprof.report.exposed import exposed_by_step
from distprof.report.lanes import displaced
from distprof.report.rank_lanes import (
    Arrows,
    Process,
    Threads,
    draw_collectives,
    draw_exposed,
    draw_findings,
    draw_memory,
    draw_steps,
    draw_zones,
)
from distprof.report.selection import Selection, touching
from distprof.report.window_events import Ids, Window, batches
from distprof.result import Result
from distprof.run.files import open_atomic
from distprof.trace.load import Run
from distprof.trace.tables import Tables

PROTOBUF = ".pftrace"
ENDINGS = (".json.gz", ".json", PROTOBUF)


def write_timeline(run: Run, result: Result, path: Path, selection: Selection | None = None) -> None:
    """Write the timeline, rank after rank, atomically: Perfetto's protobuf where `path` ends with `.pftrace`, else a
    Chrome trace, compressed where it ends with `.gz`.

    Each rank is a process. Times are on one clock, as far as `result.clock` tells. A trace that cannot be read is left
    out and named in the file.

    Args:
        selection: what is shown; None: all.

    Raises:
        NothingSelectedError: the run has nothing of it.
        OSError: it cannot be written.
    """
    selection = selection or Selection()
    tables = shifted(run.tables, corrections(result.clock))
    calls = match(_by_arrival(tables), comparable=result.clock.verdict != "unaligned").with_row_index("row")
    shown = _Shown.of(tables, calls, selection)
    ranks = _Ranks(run, result, tables, shown, calls, selection.parts, Arrows.between(shown.calls), count(1))
    with _opened(path, shown.base) as writer:
        unreadable = [text for rank in shown.ranks for text in ranks.draw(rank, writer)]
        about = {"distprof": __version__, "run": words.clean(result.run.name), "unreadable": unreadable}
        writer.close(about)


def _by_arrival(tables: Tables) -> Tables:
    """The tables with collectives that begin when the rank arrived: the kernel waits, and not what launched it."""
    arrived = pl.coalesce(tables.arrival, "created")
    return replace(tables, collectives=tables.collectives.with_columns(created=arrived))


def _compressed(file: BinaryIO) -> BinaryIO:
    """Equal runs give equal bytes, since the file says neither its name nor when it was made. It takes a tenth of the
    time of the gzip module by default, and is a third larger."""
    open_compressed = cast(Callable[..., BinaryIO], igzip.IGzipFile)
    return open_compressed(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0)


@contextmanager
def _opened(path: Path, base: int) -> Iterator[Writer]:
    with open_atomic(path) as file:
        if path.suffix == PROTOBUF:
            from distprof.report.perfetto import PerfettoWriter  # its definitions take a tenth of a second to load

            yield PerfettoWriter(file, base)
        elif path.suffix == ".gz":
            with _compressed(file) as compressed:
                yield ChromeWriter(compressed, base)
        else:
            yield ChromeWriter(file, base)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The part of a run that is drawn, on one clock, in Unix ns. `base` is its earliest record; 0 without any."""

    ranks: list[int]
    span: tuple[int, int]
    base: int
    steps: pl.DataFrame
    zones: pl.DataFrame
    calls: pl.DataFrame
    memory: pl.DataFrame

    @classmethod
    def of(cls, tables: Tables, calls: pl.DataFrame, selection: Selection) -> _Shown:
        ranks, span = selection.ranks_of(tables), selection.span_of(tables.steps)
        touches, calls_touch = touching(ranks, span, "start", "end"), touching(ranks, span, "created", "ended")
        steps, zones = tables.steps.filter(touches & selection.has_step), tables.zones.filter(touches)
        calls = calls.filter(calls_touch)
        first = [
            steps["start"].min(),
            zones["start"].min(),
            calls["created"].min(),
            tables.events.lazy().filter(touches).select(pl.col("start").min()).collect().item(),
            tables.windows.filter(touches & (pl.col("start") > span[0]))["start"].min(),
        ]
        return cls(
            ranks=ranks,
            span=span,
            base=min((start for start in first if isinstance(start, int)), default=0),
            steps=steps,
            zones=zones,
            calls=calls,
            memory=tables.memory.filter(touching(ranks, span, "time", "time")),
        )


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Draws rank after rank."""

    run: Run
    result: Result
    tables: Tables
    shown: _Shown
    calls: pl.DataFrame
    parts: frozenset[str]
    arrows: Arrows
    lanes: Iterator[int]

    def draw(self, rank: int, writer: Writer) -> list[str]:
        """Draw a rank; returns a sentence on each trace that cannot be read."""
        process = Process(writer, rank=rank, name=self._name(rank), lanes=self.lanes, base=self.shown.base)
        own = pl.col("rank") == rank
        steps = self.shown.steps.filter(own).sort("start")
        exposed = exposed_by_step(self.tables, self.calls, rank) if self.parts & {"steps", "counters"} else {}
        if "steps" in self.parts:
            draw_steps(process, steps, exposed)
        if "findings" in self.parts:
            draw_findings(process, steps, [found for found in self.result.findings if rank in (found.ranks or [rank])])
        if "zones" in self.parts:
            draw_zones(process, self.shown.zones.filter(own))
        if "collectives" in self.parts:
            draw_collectives(process, self.shown.calls.filter(own), self.tables.groups, self.arrows)
        if "counters" in self.parts:
            draw_exposed(process, steps, exposed)
            draw_memory(process, self.shown.memory.filter(own))
        return self._operators(process, rank) if "operators" in self.parts else []

    def _name(self, rank: int) -> str:
        row = next((row for row in self.result.ranks if row.rank == rank), None)
        devices = self.tables.kernels.lazy().filter(pl.col("rank") == rank).select(pl.col("device").unique()).collect()
        parts = [
            f"rank {rank}",
            f"attempt {self.run.attempt}" if len(self.run.attempts) > 1 else "",
            words.name(row.host) if row is not None and row.host else "",
            f"GPU {devices.item()}" if len(devices) == 1 and devices.item() is not None else "",
        ]
        return " · ".join(part for part in parts if part)

    def _operators(self, process: Process, rank: int) -> list[str]:
        traces = sorted(self.run.trace_files.get(rank, {}).items())
        threads = Threads(process, str(self.tables.training_thread.get(rank)))
        opened = {window: start for of, window, start, _ in self.run.tables.windows.iter_rows() if of == rank}
        of_ranks = len(str(max(self.tables.ranks)))
        of_windows = len(str(max((max(own) for own in self.run.trace_files.values() if own), default=0)))
        clocks = corrections(self.result.clock)
        base, span = self.shown.base, self.shown.span
        unreadable = []
        for index, path in traces:
            of_trace = (pl.col("rank") == rank) & (pl.col("window") == index)
            events, kernels = (table.filter(of_trace) for table in (self.run.tables.events, self.run.tables.kernels))
            window = Window(
                path=path,
                base=self.run.bases.get(rank, {}).get(index),
                around=opened.get(index, base),
                of_host=clocks.of(rank),
                of_device=clocks.of(rank, device=True),
                origin=base,
                streams=set(kernels.select("device", "stream").unique().iter_rows()),
                span=(span[0] - base, span[1] - base),
                process=process.number,
                ids=Ids(f"1{rank:0{of_ranks}}{index:0{of_windows}}"),
                displaced=displaced(events, kernels),
                lane=threads.lane,
            )
            try:
                for batch in batches(window, threads.names):
                    process.writer.recorded(batch)
            except ValueError as error:
                unreadable.append(words.clean(str(error)))
            except OSError as error:
                if error.filename != str(path):
                    raise  # what cannot be written is no matter of the trace
                unreadable.append(words.clean(f"{path.name}: {error.strerror}"))
        threads.name_lanes()
        return unreadable
