"""Reading a run directory: every rank by itself, as far as its files can be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from distprof.run.directory import RankFiles, RunDirectory
from distprof.run.manifest import Manifest, RunDirectoryError, read_manifest
from distprof.trace.collectives import build_collectives, reductions, with_kinds
from distprof.trace.kineto import KINETO_EVENTS, read_kineto
from distprof.trace.notes import Note, RecordingError
from distprof.trace.recordings import ENTRIES, Facts, Timeline, read_collectives, read_facts, read_zones
from distprof.trace.steps import build_steps, in_steps
from distprof.trace.tables import BATCHES, DEVICE_ZONES, EVENTS, WINDOWS, ZONES, Tables, empty

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Run:
    """A run, read.

    Attributes:
        attempt: the attempt that was read: the last one that left recordings.
        attempts: all attempts in the directory.
        notes: what could not be read; the tables do without it.
        trace_files: rank -> window -> its Kineto trace.
    """

    directory: RunDirectory
    manifest: Manifest
    attempt: int
    attempts: list[int]
    tables: Tables
    notes: list[Note]
    trace_files: dict[int, dict[int, Path]]


def load(path: str | Path) -> Run:
    """Read a run directory that `distprof launch` wrote; nothing else of the run is needed.

    A rank that left nothing is absent from the tables; of one with broken files there is what can be read, and a note.

    Raises:
        RunDirectoryError: `path` is no run directory, or holds no recordings; the message says what to do.
    """
    directory = RunDirectory(Path(path))
    manifest = read_manifest(directory)
    attempts = directory.attempts()
    attempt = next((number for number in reversed(attempts) if directory.ranks(number)), None)
    if attempt is None:
        raise RunDirectoryError(
            f"{directory.path} holds no recordings: no rank came far enough to leave any. "
            "Look at the output of the script, and launch it again."
        )
    files = directory.ranks(attempt)
    ranks = [_read_rank(of_rank) for of_rank in files]
    facts = {rank.number: Facts.of(rank.facts) for rank in ranks}
    zones = pl.concat([empty(ZONES), *(rank.timeline.zones for rank in ranks)])
    entries = with_kinds(pl.concat([empty(ENTRIES), *(rank.entries for rank in ranks)]))
    events = pl.concat([empty(KINETO_EVENTS), *(rank.events for rank in ranks)])
    windows = _windows(facts, events)
    step_source, steps = build_steps(zones, reductions(entries), events, windows)
    collectives, groups = build_collectives(
        entries=entries, zones=zones, steps=steps, events=events, windows=windows, facts=facts
    )
    present = [rank.number for rank in ranks if rank.left_something]
    sizes = [of_rank.world_size for of_rank in facts.values() if of_rank.world_size is not None]
    tables = Tables(
        ranks=present,
        world_size=max([manifest.world_size or 0, *sizes, *(rank + 1 for rank in present)]),
        step_source=step_source,
        groups=groups,
        zones=zones,
        steps=steps,
        collectives=collectives,
        events=events.select(list(EVENTS)),
        windows=windows,
        training_thread={
            rank: of_rank.training_thread for rank, of_rank in facts.items() if of_rank.training_thread is not None
        },
        facts={rank.number: rank.facts for rank in ranks if rank.facts},
        batches=in_steps(pl.concat([empty(BATCHES), *(rank.timeline.batches for rank in ranks)]), steps),
        device_zones=pl.concat([empty(DEVICE_ZONES), *(rank.timeline.device_zones for rank in ranks)]),
    )
    return Run(
        directory=directory,
        manifest=manifest,
        attempt=attempt,
        attempts=attempts,
        tables=tables,
        notes=[*(note for rank in ranks for note in rank.notes), *_kept_apart(directory, attempt)],
        trace_files={of_rank.rank: traces for of_rank in files if (traces := of_rank.windows())},
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    """What could be read of one rank."""

    number: int
    facts: dict[str, Any]
    timeline: Timeline
    entries: pl.DataFrame
    events: pl.DataFrame
    notes: list[Note]

    @property
    def left_something(self) -> bool:
        return bool(self.facts) or any(len(table) for table in (self.timeline.zones, self.entries, self.events))


def _read_rank(files: RankFiles) -> _Rank:
    rank = files.rank
    notes: list[Note] = []
    no_facts: dict[str, Any] = {}
    facts = _read(partial(read_facts, files.facts, rank), no_facts, notes)
    timeline, entries, events = Timeline(), empty(ENTRIES), [empty(KINETO_EVENTS)]
    if files.zones.exists():
        timeline = _read(partial(read_zones, files.zones, rank), timeline, notes)
    if files.collectives.exists():
        entries = _read(partial(read_collectives, files.collectives, rank), entries, notes)
    for window, path in files.windows().items():
        events.append(_read(partial(read_kineto, path, rank, window), events[0], notes))
    return _Rank(rank, facts, timeline, entries, pl.concat(events), notes)


def _read(read: Callable[[], tuple[Value, list[Note]]], otherwise: Value, notes: list[Note]) -> Value:
    try:
        value, more = read()
    except RecordingError as error:
        notes.append(error.note)
        return otherwise
    notes.extend(more)
    return value


def _kept_apart(directory: RunDirectory, attempt: int) -> list[Note]:
    text = "a second process recorded as this rank; its files are kept and were not analysed: start each rank once"
    return [Note(rank, path, None, text) for path, rank in directory.kept_apart(attempt).items()]


def _windows(facts: dict[int, Facts], events: pl.DataFrame) -> pl.DataFrame:
    """Windows by the facts; of a trace that they don't mention, from its first event to its last."""
    told = pl.DataFrame(
        [
            (rank, window.index, window.start_unix_ns, window.end_unix_ns)
            for rank, of_rank in facts.items()
            for window in of_rank.windows
            if window.start_unix_ns is not None and window.end_unix_ns is not None
        ],
        schema=WINDOWS,
        orient="row",
    )
    seen = events.group_by("rank", "window").agg(pl.col("start").min(), pl.col("end").max())
    return pl.concat([told, seen.join(told, on=["rank", "window"], how="anti")]).sort("rank", "window")
