"""Reading a run: a run directory, every rank by itself as far as its files can be read, or traces of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import polars as pl

from distprof.run.directory import RankFiles, RunDirectory
from distprof.run.files import check_inside
from distprof.run.manifest import MOST_RANKS, RunDirectoryError, read_manifest
from distprof.trace.collectives import build_collectives, reductions, with_kinds
from distprof.trace.columns import KINETO_EVENTS
from distprof.trace.digest import read_with_digest
from distprof.trace.joined import Attempt, attempts_of, directories_of
from distprof.trace.jumps import Jump, put_back, put_back_columns
from distprof.trace.kernels import CARRIED_OUT, read_kernels
from distprof.trace.kineto import placed, read_kineto
from distprof.trace.loaded import Run
from distprof.trace.notes import Note, RecordingError
from distprof.trace.recordings import ENTRIES, Facts, Timeline, read_collectives, read_facts, read_probes, read_zones
from distprof.trace.roots import TOLD, told_roots
from distprof.trace.shapes import read_shapes
from distprof.trace.steps import build_steps, in_steps
from distprof.trace.tables import (
    BATCHES,
    DEVICE_ZONES,
    EVENTS,
    KERNELS,
    MEMORY,
    PROBES,
    SHAPES,
    SIGNS,
    WINDOWS,
    ZONES,
    Tables,
    empty,
)
from distprof.trace.traces import load_traces
from distprof.trace.workers import Advance, Progress, read_each

__all__ = ["Run", "load", "load_attempt", "load_others"]

Value = TypeVar("Value")
_LAST_WINDOW = 2**31 - 1


def load(
    *paths: str | Path,
    ranks: Mapping[str | Path, int] | None = None,
    collectives: Sequence[tuple[str, str | None]] = (),
    workers: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Read a run directory that `distprof launch` wrote, or traces that anybody recorded.

    A rank that left nothing is absent from the tables; of one with broken files there is what can be read, and a note.

    Args:
        paths: a run directory, or those of several hosts; or files, folders and globs of the traces of one job.
        ranks: file -> rank, for traces that do not tell their rank themselves.
        collectives: (regular expression, kind or None) of kernels that communicate, beside the known ones: see
            `distprof.trace.kinds.PATTERNS`. They serve traces that others recorded.
        workers: so many forks read at once, where this process can be forked (see `distprof.trace.workers`).
        progress: is called with the numbers of bytes read and to be read.

    Raises:
        RunDirectoryError: there is nothing that can be analysed, or the traces are of different jobs; the message says
            what to do.
    """
    given = [Path(path) for path in paths]
    runs = [path for path in given if RunDirectory(path).manifest.is_file()]
    if runs:
        directories = directories_of(given)
        if len(directories) > 1:
            return _load_run(directories, workers, progress)
        return read_with_digest(directories[0], lambda: _load_run(directories, workers, progress))
    if not given:
        raise RunDirectoryError("no path was given: give a run directory, traces, or a folder of traces")
    for path, rank in (ranks or {}).items():
        if not 0 <= rank < MOST_RANKS:
            raise RunDirectoryError(f"{path} cannot be rank {rank}: ranks go from 0 to {MOST_RANKS - 1}")
    try:
        return load_traces(
            given,
            ranks={Path(path): rank for path, rank in (ranks or {}).items()},
            patterns=collectives,
            workers=workers,
            progress=progress,
        )
    except re.error as error:
        raise RunDirectoryError(f"{error.pattern!r} is no regular expression ({error})") from error


def load_attempt(run: Run, number: int) -> Run | None:
    """Read another attempt of a run directory than the one that `load` chose; None if it left no recordings.

    Raises:
        RunDirectoryError: the directory can no longer be read.
    """
    directories = [run.directory, *map(RunDirectory, run.beside)]
    attempts, _ = attempts_of(directories)
    if not any(attempt.number == number and attempt.files for attempt in attempts):
        return None
    return _load_run(directories, number=number)


def load_others(run: Run) -> Iterator[Run]:
    """Read the other attempts of a run directory that left recordings, in their order.

    Raises:
        RunDirectoryError: the directory can no longer be read.
    """
    directories = [run.directory, *map(RunDirectory, run.beside)]
    attempts, notes = attempts_of(directories)
    others = [one for one in attempts if one.files and one.number != run.attempt and one.number in set(run.attempts)]
    for one in others:
        yield _load_run(directories, number=one.number, listed=(attempts, notes))


def _load_run(
    directories: Sequence[RunDirectory],
    workers: int = 1,
    progress: Progress | None = None,
    number: int | None = None,
    listed: tuple[Sequence[Attempt], Sequence[Note]] | None = None,
) -> Run:
    directory = directories[0]
    manifest = read_manifest(directory)
    attempts, earlier = listed or attempts_of(directories)
    notes = [*earlier]
    wanted = {number} if number is not None else {attempt.number for attempt in attempts}
    attempt = next((one for one in reversed(attempts) if one.files and one.number in wanted), None)
    if attempt is None:
        raise RunDirectoryError(
            f"{directory.path} holds no recordings: no rank came far enough to leave any. "
            "Look at the output of the script, and launch it again."
        )
    files = []
    for of_rank in attempt.files:
        if of_rank.rank < MOST_RANKS:
            files.append(of_rank)
        else:
            text = f"rank unknown: by its name it is rank {of_rank.rank}, and there are no more than {MOST_RANKS}"
            notes.append(Note(None, of_rank.facts, None, f"{text}; it was not analysed"))
    world_size = manifest.world_size or 0
    if world_size > MOST_RANKS:
        text = f"world_size {world_size} cannot be and was ignored: there are no more than {MOST_RANKS} ranks"
        notes.append(Note(None, directory.manifest, "$.world_size", text))
        world_size = 0
    sizes = [sum(path.stat().st_size for path in of_rank.windows().values() if path.exists()) for of_rank in files]
    reading = read_each(_read_rank, files, sizes, workers=workers, progress=progress)
    ranks = [outcome() for outcome in reading]
    facts = {rank.number: Facts.of(rank.facts) for rank in ranks}
    present = [rank.number for rank in ranks if rank.left_something]
    told = [size for size in (world_size, *(of_rank.world_size for of_rank in facts.values())) if size]
    world_size = max([*told, *(rank + 1 for rank in present)], default=0)
    if told:
        facts, beyond = _within_world(facts, world_size)
        notes += [Note(of.rank, of.facts, "$.groups", beyond[of.rank]) for of in files if of.rank in beyond]
    zones = pl.concat([empty(ZONES), *(rank.timeline.zones for rank in ranks)])
    entries = with_kinds(pl.concat([empty(ENTRIES), *(rank.entries for rank in ranks)]))
    events = pl.concat([empty(KINETO_EVENTS), *(rank.events for rank in ranks)])
    kernels = pl.concat([empty(KERNELS), *(rank.kernels for rank in ranks)])
    windows = _windows(facts, events)
    step_source, steps = build_steps(zones, reductions(entries), events, windows)
    collectives, groups = build_collectives(
        entries=entries,
        zones=zones,
        steps=steps,
        events=events,
        windows=windows,
        facts=facts,
        told={rank.number: rank.roots for rank in ranks},
        carried_out={rank.number: rank.carried_out for rank in ranks},
    )
    tables = Tables(
        ranks=present,
        world_size=world_size,
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
        kernels=kernels,
        memory=pl.concat([empty(MEMORY), *(rank.memory for rank in ranks)]),
        shapes=pl.concat([empty(SHAPES), *(rank.shapes for rank in ranks)]),
        probes=_probes(ranks),
        signs=_signs(ranks, facts) if len(directories) == 1 else empty(SIGNS),
        arrival="started" if len(kernels) else "created",
    )
    return Run(
        directory=directory,
        manifest=manifest,
        attempt=attempt.number,
        attempts=[each.number for each in attempts],
        tables=tables,
        notes=[*notes, *(note for rank in ranks for note in rank.notes), *_kept_apart(attempt)],
        trace_files={of_rank.rank: traces for of_rank in files if (traces := _traces(of_rank))},
        bases={rank.number: rank.bases for rank in ranks},
        beside=[other.path for other in directories[1:]],
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    """What could be read of one rank."""

    number: int
    facts: dict[str, Any]
    timeline: Timeline
    entries: pl.DataFrame
    events: pl.DataFrame
    kernels: pl.DataFrame
    carried_out: pl.DataFrame
    memory: pl.DataFrame
    shapes: pl.DataFrame
    roots: pl.DataFrame
    probes: pl.DataFrame
    bases: dict[int, int]
    notes: list[Note]

    @property
    def left_something(self) -> bool:
        return bool(self.facts) or any(len(table) for table in (self.timeline.zones, self.entries, self.events))


def _read_rank(files: RankFiles, advance: Advance) -> _Rank:
    rank, within = files.rank, files.folder.parent
    notes: list[Note] = []
    no_facts: dict[str, Any] = {}

    def read(reader: Callable[..., tuple[Value, list[Note]]], path: Path, *more: Any) -> Value | None:
        try:
            check_inside(path, within)
            value, noted = reader(path, rank, *more)
        except OSError as error:
            notes.append(Note(rank, path, None, f"it was not read: {error.strerror}"))
            return None
        except RecordingError as error:
            notes.append(error.note)
            return None
        notes.extend(noted)
        return value

    facts = read(read_facts, files.facts) or no_facts
    timeline, entries = Timeline(), empty(ENTRIES)
    events, kernels, carried_out = [empty(KINETO_EVENTS)], [empty(KERNELS)], [empty(CARRIED_OUT)]
    memory, shapes, roots = [empty(MEMORY)], [empty(SHAPES)], [empty(TOLD)]
    if files.zones.exists():
        timeline = read(read_zones, files.zones) or timeline
    if files.collectives.exists():
        told = read(read_collectives, files.collectives)
        entries = entries if told is None else put_back_columns(told, timeline.jumps, "created", "started", "ended")
    probes = read(read_probes, files.clock) if files.clock.exists() else None
    opened = {window.index: window.start_unix_ns for window in Facts.of(facts).windows}
    facts = _with_times_put_back(facts, timeline.jumps)
    disturbed = _windows_in_jumps(facts, timeline.jumps)
    bases: dict[int, int] = {}
    for window, path in files.windows().items():
        if window > _LAST_WINDOW:
            notes.append(Note(rank, path, None, f"no rank has a window {window}: it was not read"))
            continue
        if window in disturbed:
            notes.append(Note(rank, path, None, "the clock was set while the window was open: it was not read"))
            continue
        trace = read(read_kineto, path, opened.get(window), advance)
        if trace is not None:
            moment = opened.get(window) or trace.events["start"].min()
            if timeline.jumps and isinstance(moment, int):
                trace = trace.later_by(put_back(timeline.jumps, moment) - moment)
            events.append(placed(trace.events, rank, window, KINETO_EVENTS))
            done, collectives = read_kernels(trace.events, trace.calls)
            kernels.append(placed(done, rank, window, KERNELS))
            carried_out.append(collectives)
            memory.append(placed(trace.memory, rank, window, MEMORY))
            shapes.append(placed(read_shapes(trace.events), rank, window, SHAPES))
            roots.append(told_roots(trace.events, trace.calls))
            bases[window] = trace.header.base or 0
    return _Rank(
        number=rank,
        facts=facts,
        timeline=timeline,
        entries=entries,
        events=pl.concat(events),
        kernels=pl.concat(kernels),
        carried_out=pl.concat(carried_out),
        memory=pl.concat(memory),
        shapes=pl.concat(shapes),
        roots=pl.concat(roots).sort("start"),
        probes=empty(PROBES) if probes is None else put_back_columns(probes, timeline.jumps, "sent", "received"),
        bases=bases,
        notes=notes,
    )


def _within_world(facts: Mapping[int, Facts], size: int) -> tuple[dict[int, Facts], dict[int, str]]:
    """The ranks' facts without members of groups that the job does not have; and what is said of ranks that tell of
    such."""
    within, beyond = dict(facts), {}
    for rank, of_rank in facts.items():
        groups = [
            msgspec.structs.replace(group, ranks=sorted({member for member in group.ranks if member < size}))
            if len(group.ranks) > size or max(group.ranks, default=0) >= size
            else group
            for group in of_rank.groups
        ]
        if groups != of_rank.groups:
            within[rank] = msgspec.structs.replace(of_rank, groups=groups)
            beyond[rank] = f"it tells of groups with ranks that a job of {size} does not have: these were left out"
    return within, beyond


def _with_times_put_back(facts: dict[str, Any], jumps: Sequence[Jump]) -> dict[str, Any]:
    """A rank's facts, as if nobody had set its clock."""
    if not jumps or not facts:
        return facts

    def back(values: dict[str, Any], *names: str) -> dict[str, Any]:
        return {**values, **{name: put_back(jumps, values[name]) for name in names if values.get(name) is not None}}

    told = facts.get("told")
    windows = [back(window, "start_unix_ns", "end_unix_ns") for window in facts["windows"]]
    put = {"windows": windows, "told": told and back(told, "unix_ns")}
    return back({**facts, **put}, "started_unix_ns", "ended_unix_ns", "drained_unix_ns")


def _windows_in_jumps(facts: dict[str, Any], jumps: Sequence[Jump]) -> set[int]:
    """Windows that were open while the clock was set: torch puts all of a window's times onto the clock at once."""
    return {
        window.index
        for window in Facts.of(facts).windows
        for jump in jumps
        if window.start_unix_ns is not None
        and window.start_unix_ns < jump.end
        and (window.end_unix_ns is None or window.end_unix_ns > jump.begin)
    }


def _signs(ranks: Sequence[_Rank], facts: Mapping[int, Facts]) -> pl.DataFrame:
    """Last signs of life. Directories of several hosts have none: they were copied at different moments."""
    rows = [(rank.number, rank.timeline.written, facts[rank.number].drained_unix_ns) for rank in ranks]
    return pl.DataFrame(rows, schema=SIGNS, orient="row")


def _probes(ranks: Sequence[_Rank]) -> pl.DataFrame:
    """The probes of all ranks; who answered did so on a clock that may have been set, too."""
    probes = pl.concat([empty(PROBES), *(rank.probes for rank in ranks)])
    for rank in ranks:
        answered = pl.col("peer") == rank.number
        probes = put_back_columns(probes, rank.timeline.jumps, "peer_received", "peer_sent", where=answered)
    return probes


def _traces(files: RankFiles) -> dict[int, Path]:
    """A rank's traces by window, but for links out of the run directory: what is drawn is read again."""
    found = {}
    for window, path in files.windows().items():
        with suppress(OSError):
            check_inside(path, files.folder.parent)
            found[window] = path
    return found


def _kept_apart(attempt: Attempt) -> list[Note]:
    text = "a second process recorded as this rank; its files are kept and were not analysed: start each rank once"
    apart = [directory.kept_apart(number) for directory, number in attempt.places]
    return [Note(rank, path, None, text) for paths in apart for path, rank in paths.items()]


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
