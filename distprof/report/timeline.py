"""All ranks on one clock, for Perfetto: steps, findings, zones, collectives, curves and, where recorded, operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl
from isal import igzip

from distprof._version import __version__
from distprof.analyze.waits import match
from distprof.clock.shift import shifted
from distprof.report import words
from distprof.report.chrome import ChromeWriter
from distprof.report.drawing import Writer
from distprof.report.exposed import exposed_by_step
from distprof.report.lanes import displaced
from distprof.report.placed_attempts import PlacedAttempt, placed_attempts
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
from distprof.trace.workers import Advance, Progress, no_advance

PROTOBUF = ".pftrace"
ENDINGS = (".json.gz", ".json", PROTOBUF)


def write_timeline(
    run: Run,
    result: Result,
    path: Path,
    selection: Selection | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the timeline, rank after rank, atomically: Perfetto's protobuf where `path` ends with `.pftrace`, else a
    Chrome trace, compressed where it ends with `.gz`.

    Each rank is a process, and so it is in each other attempt that left recordings; those have no part in steps that
    are chosen, which are steps of the attempt that was read. Times are on one clock, as far as it is known. A trace
    that cannot be read is left out and named in the file.

    Args:
        selection: what is shown; None: all.
        progress: is called with the numbers of bytes of recordings that have been written and are to be.

    Raises:
        NothingSelectedError: the run has nothing of it.
        OSError: it cannot be written.
    """
    selection = selection or Selection()
    attempts = placed_attempts(run, result)
    ranks = selection.ranks_of({rank for attempt in attempts for rank in attempt.run.tables.ranks})
    arrows = count(1)
    shown = [
        _Shown.of(attempt, ranks, selection, arrows) for attempt in attempts[: 1 if selection.is_of_steps else None]
    ]
    base = min((start for one in shown for start in one.first), default=0)
    identities = _Identities.of(attempts)
    drawing = _Drawing(identities, base, selection.parts, count(1), _advance(shown, progress))
    with _opened(path, base) as writer:
        unreadable = [text for one in shown for rank in one.ranks for text in drawing.draw(one, rank, writer)]
        about = {"distprof": __version__, "run": words.clean(result.run.name), "unreadable": unreadable}
        writer.close(about)


def _advance(shown: Sequence[_Shown], progress: Progress | None) -> Advance:
    """What is told of bytes as they are read, and tells `progress`."""
    if progress is None:
        return no_advance
    files = [path for one in shown for rank in one.ranks for path in one.attempt.run.trace_files.get(rank, {}).values()]
    total, done = sum(path.stat().st_size for path in files if path.exists()), 0

    def advance(read: int) -> None:
        nonlocal done
        done += read
        progress(min(done, total), total)

    return advance


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
    """The part of an attempt that is drawn, on the timeline's clock, in Unix ns.

    Attributes:
        tables, calls: all of the attempt.
        first: times that it begins with; none if nothing was recorded.
    """

    attempt: PlacedAttempt
    tables: Tables
    calls: pl.DataFrame
    ranks: list[int]
    span: tuple[int, int]
    first: list[int]
    steps: pl.DataFrame
    zones: pl.DataFrame
    collectives: pl.DataFrame
    memory: pl.DataFrame
    arrows: Arrows

    @classmethod
    def of(cls, attempt: PlacedAttempt, ranks: list[int], selection: Selection, arrows: Iterator[int]) -> _Shown:
        """Choose it.

        Args:
            ranks: those that are shown, if they took part.
            arrows: numbers for arrows.
        """
        tables = shifted(attempt.run.tables, attempt.clocks)
        calls = match(_by_arrival(tables), comparable=attempt.comparable).with_row_index("row")
        ranks, span = [rank for rank in ranks if rank in tables.ranks], selection.span_of(tables.steps)
        touches = touching(ranks, span, "start", "end")
        steps, zones = tables.steps.filter(touches & selection.has_step), tables.zones.filter(touches)
        collectives = calls.filter(touching(ranks, span, "created", "ended"))
        first = [
            steps["start"].min(),
            zones["start"].min(),
            collectives["created"].min(),
            tables.events.lazy().filter(touches).select(pl.col("start").min()).collect().item(),
            tables.windows.filter(touches & (pl.col("start") > span[0]))["start"].min(),
        ]
        return cls(
            attempt=attempt,
            tables=tables,
            calls=calls,
            ranks=ranks,
            span=span,
            first=[start for start in first if isinstance(start, int)],
            steps=steps,
            zones=zones,
            collectives=collectives,
            memory=tables.memory.filter(touching(ranks, span, "time", "time")),
            arrows=Arrows.between(collectives, arrows),
        )

    @property
    def number(self) -> int:
        """Which attempt it is."""
        return self.attempt.run.attempt

    def name(self, rank: int) -> str:
        """What a rank is called."""
        attempt = self.attempt
        devices = self.tables.kernels.lazy().filter(pl.col("rank") == rank).select(pl.col("device").unique()).collect()
        parts = [
            f"rank {rank}",
            words.name(attempt.hosts.get(rank, "")),
            f"attempt {self.number}" if attempt.is_one_of_several else "",
            f"GPU {devices.item()}" if len(devices) == 1 and devices.item() is not None else "",
            "on its host's clock" if rank in attempt.alone else "",
        ]
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Identities:
    """How the ranks of all attempts are told apart, and in which order they stand."""

    attempts: list[int]
    ranks: int
    windows: int

    @classmethod
    def of(cls, attempts: Sequence[PlacedAttempt]) -> _Identities:
        """Find out how many there are; the attempt that was read comes first."""
        runs = [attempt.run for attempt in attempts]
        ranks = 1 + max((rank for run in runs for rank in run.tables.ranks), default=0)
        windows = 1 + max((window for run in runs for own in run.trace_files.values() for window in own), default=0)
        return cls([run.attempt for run in runs], ranks, windows)

    def process(self, attempt: int, rank: int) -> int:
        """A rank's process: its own number in the attempt that was read."""
        return self.attempts.index(attempt) * self.ranks + rank

    def order(self, attempt: int, rank: int) -> int:
        """Where it stands: ranks one below the other, and each rank's attempts."""
        return rank * len(self.attempts) + sorted(self.attempts).index(attempt)

    def ids(self, process: int, window: int) -> Ids:
        """How the ids of one of its traces are told from all others'."""
        of_processes, of_windows = len(str(len(self.attempts) * self.ranks - 1)), len(str(self.windows - 1))
        return Ids(f"1{process:0{of_processes}}{window:0{of_windows}}")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Draws rank after rank. Its lanes are numbers, each once."""

    identities: _Identities
    base: int
    parts: frozenset[str]
    lanes: Iterator[int]
    advance: Advance

    def draw(self, shown: _Shown, rank: int, writer: Writer) -> list[str]:
        """Draw a rank in one attempt; returns a sentence on each trace that cannot be read."""
        process = Process(
            writer,
            number=self.identities.process(shown.number, rank),
            name=shown.name(rank),
            order=self.identities.order(shown.number, rank),
            lanes=self.lanes,
        )
        parts = self.parts
        steps = self._own(shown.steps, rank, "start", "end").sort("start")
        exposed = exposed_by_step(shown.tables, shown.calls, rank) if parts & {"steps", "counters"} else {}
        if "steps" in parts:
            draw_steps(process, steps, exposed)
        if "findings" in parts:
            found = [finding for finding in shown.attempt.findings if rank in (finding.ranks or [rank])]
            draw_findings(process, steps, found)
        if "zones" in parts:
            draw_zones(process, self._own(shown.zones, rank, "start", "end"))
        if "collectives" in parts:
            calls = self._own(shown.collectives, rank, "created", "binds_until", "ended")
            draw_collectives(process, calls, shown.tables.groups, shown.arrows)
        if "counters" in parts:
            draw_exposed(process, steps, exposed)
            draw_memory(process, self._own(shown.memory, rank, "time"))
        return self._operators(process, shown, rank) if "operators" in parts else []

    def _own(self, table: pl.DataFrame, rank: int, *times: str) -> pl.DataFrame:
        """A rank's rows, in ns since the timeline's beginning."""
        return table.filter(pl.col("rank") == rank).with_columns(pl.col(*times) - self.base)

    def _operators(self, process: Process, shown: _Shown, rank: int) -> list[str]:
        run, clocks = shown.attempt.run, shown.attempt.clocks
        threads = Threads(process, str(run.tables.training_thread.get(rank)))
        opened = {window: start for of, window, start, _ in run.tables.windows.iter_rows() if of == rank}
        unreadable = []
        for index, path in sorted(run.trace_files.get(rank, {}).items()):
            of_trace = (pl.col("rank") == rank) & (pl.col("window") == index)
            events, kernels = (table.filter(of_trace) for table in (run.tables.events, run.tables.kernels))
            window = Window(
                path=path,
                base=run.bases.get(rank, {}).get(index),
                around=opened.get(index, self.base),
                of_host=clocks.of(rank),
                of_device=clocks.of(rank, device=True),
                origin=self.base,
                streams=set(kernels.select("device", "stream").unique().iter_rows()),
                span=(shown.span[0] - self.base, shown.span[1] - self.base),
                process=process.number,
                ids=self.identities.ids(process.number, index),
                displaced=displaced(events, kernels),
                lane=threads.lane,
                advance=self.advance,
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
