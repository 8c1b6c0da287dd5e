"""The directories of one run: one that all hosts share, or one of each host, joined by the run's id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.run.attempts import read_key
from distprof.run.directory import RankFiles, RunDirectory
from distprof.run.manifest import RunDirectoryError, read_manifest
from distprof.trace.notes import Note


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a run.

    Attributes:
        number: its number; where directories count it differently, the highest of theirs that is free.
        places: where it lies: directories and its numbers in them.
        files: the files of each rank that left its facts, ascending.
    """

    number: int
    places: list[tuple[RunDirectory, int]]
    files: list[RankFiles]


def directories_of(paths: Sequence[Path]) -> list[RunDirectory]:
    """The run directories at `paths`, of which there is at least one.

    Raises:
        RunDirectoryError: they are not all of one run.
    """
    directories = list({path.resolve(): RunDirectory(path) for path in paths}.values())
    if len(directories) == 1:
        return directories
    for directory in directories:
        if not directory.manifest.is_file():
            one = next(each.path for each in directories if each.manifest.is_file())
            raise RunDirectoryError(f"{one} is a run directory and {directory.path} is none: give it alone")
    ids = {directory: read_manifest(directory).run_id for directory in directories}
    first = directories[0]
    for directory, run_id in ids.items():
        if run_id != ids[first]:
            raise RunDirectoryError(
                f"{first.path} and {directory.path} are of different runs ({ids[first]:.40} and {run_id:.40}): "
                "give the directories of one run"
            )
    return directories


def attempts_of(directories: Sequence[RunDirectory]) -> tuple[list[Attempt], list[Note]]:
    """The attempts of a run, ascending; those in several directories with one key are one attempt.

    Of a rank that is in several of them, the first directory's files are taken.
    """
    together: dict[str, list[tuple[RunDirectory, int]]] = {}
    for directory in directories:
        for number in directory.attempts():
            key = read_key(directory, number) if len(directories) > 1 else None
            together.setdefault(key or f"number {number}", []).append((directory, number))
    attempts: list[Attempt] = []
    notes: list[Note] = []
    for places in sorted(together.values(), key=lambda places: max(number for _, number in places)):
        files: dict[int, RankFiles] = {}
        for directory, number in places:
            for of_rank in directory.ranks(number):
                if of_rank.rank in files:
                    text = f"the same rank stands in {files[of_rank.rank].folder}, and that was taken"
                    notes.append(Note(of_rank.rank, of_rank.facts, None, text))
                else:
                    files[of_rank.rank] = of_rank
        number = max(number for _, number in places)
        if attempts:
            number = max(number, attempts[-1].number + 1)
        attempts.append(Attempt(number, places, [files[rank] for rank in sorted(files)]))
    return attempts, notes
