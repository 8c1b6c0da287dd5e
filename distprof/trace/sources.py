"""Which files are meant by paths, folders and globs."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from distprof.run.manifest import RunDirectoryError
from distprof.trace.notes import Note

_ENDINGS = (".json", ".json.gz")
_WILDCARDS = frozenset("*?[")


def find_files(paths: Sequence[Path]) -> tuple[list[Path], list[Note]]:
    """The files that may be traces, each once, and notes on what a folder holds and is not read.

    Of a folder its own files count, not those of its sub-folders: they are often an older run.

    Raises:
        RunDirectoryError: a path leads nowhere.
    """
    found: dict[Path, Path] = {}
    notes: list[Note] = []
    for path in _expanded(paths):
        if path.is_dir():
            files, more = _in_folder(path)
            notes += more
        else:
            files = [path]
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values()), notes


def _expanded(paths: Sequence[Path]) -> list[Path]:
    expanded: list[Path] = []
    for path in paths:
        if path.exists():
            expanded.append(path)
            continue
        wild = bool(_WILDCARDS & set(str(path)))
        matches = sorted(glob.glob(str(path), recursive=True)) if wild else []  # noqa: PTH207 (Path.glob takes no absolute ones)
        if not matches:
            raise RunDirectoryError(f"{path} does not exist: give a run directory, traces, or a folder of traces")
        expanded += map(Path, matches)
    return expanded


def _in_folder(folder: Path) -> tuple[list[Path], list[Note]]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise RunDirectoryError(f"{folder} cannot be read ({error.strerror})") from error
    files, notes = [], []
    for entry in entries:
        if entry.is_dir():
            if any(child.name.lower().endswith(_ENDINGS) for child in entry.glob("*")):
                notes.append(Note(None, entry, None, "a sub-folder: it was not read; give it by itself"))
        elif entry.name.lower().endswith(_ENDINGS):
            if entry.name.startswith("."):
                notes.append(Note(None, entry, None, "a hidden file: it was not read"))
            else:
                files.append(entry)
    return files, notes
