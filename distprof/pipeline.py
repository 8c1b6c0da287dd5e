"""The one place that wires reading, clocks and analyses: a run in, its result out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from distprof.analyze.inputs import Recording, prepare
from distprof.analyze.pictures import with_pictures
from distprof.analyze.registry import analyze
from distprof.analyze.traces import analyze_traces
from distprof.clock.align import align
from distprof.clock.shift import corrections, shifted
from distprof.result import NotObserved, Result, RunInfo
from distprof.trace.endings import ending, ending_notes
from distprof.trace.load import Run
from distprof.trace.notes import Note
from distprof.trace.tables import Tables


def build(run: Run, steps: tuple[int | None, int | None] = (None, None)) -> Result:
    """Analyse a run: everything in the result comes from its files.

    Args:
        steps: only those from the first to before the second of these are steady; None: from the first, to the last.
    """
    clock, unseen = align(run.tables, recorded=run.manifest is not None)
    tables = _limited(shifted(run.tables, corrections(clock)), *steps)
    if run.manifest is None:
        sections = analyze_traces(tables, clock, _recording(run))
    else:
        inputs = prepare(tables, clock, _recording(run))
        sections = with_pictures(inputs, analyze(inputs))
    found = [*run.notes, *ending_notes(run)]
    notes = [NotObserved(_within(note), None if note.rank is None else [note.rank], note.text) for note in found]
    not_observed = [*notes, *sections.pop("not_observed"), *unseen]
    return Result(run=_run_info(run), clock=clock, groups=run.tables.groups, not_observed=not_observed, **sections)


def _limited(tables: Tables, first: int | None, end: int | None) -> Tables:
    """The tables with all other steps kept out of the steady ones."""
    if first is None and end is None:
        return tables
    outside = (pl.col("step") < (first or 0)) | (pl.lit(end is not None) & (pl.col("step") >= (end or 0)))
    excluded = pl.when(outside).then(pl.col("excluded").fill_null("not_chosen")).otherwise("excluded")
    return replace(tables, steps=tables.steps.with_columns(excluded=excluded))


def _within(note: Note) -> str:
    return f"{note.file.name}, {note.place}" if note.place else note.file.name


def _run_info(run: Run) -> RunInfo:
    facts = list(run.tables.facts.values())

    def shared(key: str) -> Any:
        return next((row[key] for row in facts if row.get(key) is not None), None)

    named = RunInfo(
        name=run.directory.name,
        world_size=run.tables.world_size,
        nnodes=_nodes(facts),
        backend=shared("backend"),
        device=shared("device"),
        torch=shared("torch"),
    )
    if run.manifest is None:
        return named
    moments = run.tables.zones.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return replace(
        named,
        id=run.manifest.run_id,
        command=run.manifest.command,
        attempt=run.attempt,
        attempts=run.attempts,
        wall_s=None if None in moments else (moments[1] - moments[0]) / 1e9,
    )


def _nodes(facts: list[dict[str, Any]]) -> int | None:
    """Hosts that the ranks ran on; None where one of them does not say."""
    hosts = {(row["host"], row["boot_id"]) for row in facts}
    return len(hosts) if hosts and all(host is not None for host, _ in hosts) else None


def _recording(run: Run) -> Recording:
    files = {rank: list(windows.values()) for rank, windows in run.trace_files.items() if windows}
    folder = run.directory.path.absolute()
    sizes = [path.stat().st_size for paths in files.values() for path in paths if path.exists()]
    ended = ending(run)
    failures = ended.get("failures", {})
    first = next((rank for rank, failure in failures.items() if failure.get("first")), None)
    return Recording(
        traces={rank: _from(folder, paths[0].absolute()) for rank, paths in files.items()},
        trace_bytes=sum(sizes) if sizes else None,
        failures={int(rank): _how_it_failed(rank, failure, first) for rank, failure in failures.items()},
        absent={int(rank): text for rank, text in ended.get("absent", {}).items()},
    )


def _from(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _how_it_failed(rank: str, failure: dict[str, Any], first: str | None) -> str:
    """In words; of several ranks that failed, the first brought the others down."""
    victim = f", after rank {first} had failed" if first not in (None, rank) else ""
    if failure.get("signal"):
        return f"it was killed by {failure['signal']}{victim}"
    code = failure.get("exit_code")
    return f"it {'failed' if code is None else f'exited with {code}'}{victim}"
