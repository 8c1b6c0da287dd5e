"""A run as it was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from distprof.run.directory import RunDirectory
from distprof.run.manifest import Manifest
from distprof.trace.notes import Note
from distprof.trace.tables import Tables


@dataclass(frozen=True, slots=True)
class Run:
    """A run, read.

    Attributes:
        directory: where it lies; of traces that others recorded, the folder they have in common.
        manifest: what was launched; None for traces that others recorded.
        attempt: the attempt that was read: the last one that left recordings.
        attempts: all attempts in the directory.
        tables: the recordings.
        notes: what could not be read, or only in part, and what was done about it; the tables do without it.
        trace_files: rank -> window -> its Kineto trace.
        bases: the same -> what its times count from, in Unix ns.
        beside: directories of other hosts, where they share none.
    """

    directory: RunDirectory
    manifest: Manifest | None
    attempt: int
    attempts: list[int]
    tables: Tables
    notes: list[Note]
    trace_files: dict[int, dict[int, Path]]
    bases: dict[int, dict[int, int]] = field(default_factory=dict)
    beside: list[Path] = field(default_factory=list)
