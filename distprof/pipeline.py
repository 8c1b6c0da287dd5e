"""The one place that wires reading, clocks and analyses: a run in, its result out."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.analyze.inputs import Recording, prepare
from distprof.analyze.registry import analyze
from distprof.clock.align import align
from distprof.result import NotObserved, Result, RunInfo
from distprof.trace.load import Run
from distprof.trace.notes import Note


def build(run: Run) -> Result:
    """Analyse a run: everything in the result comes from its files."""
    clock, unseen = align(run.tables.facts)
    sections = analyze(prepare(run.tables, clock, _recording(run)))
    notes = [NotObserved(_within(note), [note.rank], note.text) for note in run.notes]
    not_observed = [*notes, *sections.pop("not_observed"), *unseen]
    return Result(run=_run_info(run), clock=clock, groups=run.tables.groups, not_observed=not_observed, **sections)


def _within(note: Note) -> str:
    return f"{note.file.name}, {note.place}" if note.place else note.file.name


def _run_info(run: Run) -> RunInfo:
    facts = list(run.tables.facts.values())

    def shared(key: str) -> Any:
        return next((row[key] for row in facts if row.get(key) is not None), None)

    zones = run.tables.zones
    moments = zones.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return RunInfo(
        name=run.directory.name,
        id=run.manifest.run_id,
        command=run.manifest.command,
        world_size=run.tables.world_size,
        nnodes=len({(row["host"], row["boot_id"]) for row in facts}) or None,
        backend=shared("backend"),
        device=shared("device"),
        torch=shared("torch"),
        attempt=run.attempt,
        attempts=run.attempts,
        wall_s=None if None in moments else (moments[1] - moments[0]) / 1e9,
    )


def _recording(run: Run) -> Recording:
    files = {rank: list(windows.values()) for rank, windows in run.trace_files.items() if windows}
    sizes = [path.stat().st_size for paths in files.values() for path in paths]
    failures = (run.manifest.ended or {}).get("failures", {})
    return Recording(
        traces={rank: str(paths[0].relative_to(run.directory.path)) for rank, paths in files.items()},
        trace_bytes=sum(sizes) if sizes else None,
        failures={int(rank): _how_it_failed(failure) for rank, failure in failures.items()},
    )


def _how_it_failed(failure: dict[str, Any]) -> str:
    if failure.get("signal"):
        return f"it was killed by {failure['signal']}"
    return f"it exited with {failure['exit_code']}"
