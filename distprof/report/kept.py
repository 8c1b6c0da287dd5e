"""The report that lies in a run directory, for as long as it is the one that would be made again.

<run>/digest/report.json        a signature, and in its second line what the report was made of and the files it left

It serves only who made it, as the digest beside it does (`trace/digest.py`). It is known by the sizes and times of all
that lies in the directory, of distprof's own files, and of the files that the report left. Nothing here is an error:
where it does not hold, the report is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from distprof._version import __version__
from distprof.result import Result, from_json
from distprof.run.directory import RunDirectory
from distprof.run.files import open_regular
from distprof.run.signing import read_signed, users_key, write_signed

_SCHEMA = "distprof.kept.v1"
_PACKAGE = Path(__file__).parents[1]


def state_of(directory: RunDirectory) -> str | None:
    """What a report would be made of, and by what. None where links lie in the directory: what they lead to may change
    unseen."""
    folder = directory.path.absolute()
    listed: list[Any] = [_SCHEMA, __version__, sys.version]
    left = {path.name for path in (*_faces(directory), directory.digest)}
    try:
        for entry in _entries(folder, left):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return None
            listed.append((entry.path, status.st_mode, *_times(status)))
        # In a working tree distprof changes without its version.
        for entry in _entries(str(_PACKAGE), {"__pycache__"}):
            status = entry.stat()
            listed.append((entry.path, status.st_size, status.st_mtime_ns))
    except OSError:
        return None
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def kept_report(directory: RunDirectory) -> Result | None:
    """The report in a run directory, if making it anew would change nothing in it; else None."""
    key = users_key()
    text = None if key is None else read_signed(_stamp(directory), key)
    state = None if text is None else state_of(directory)
    if text is None or state is None:
        return None
    try:
        told = json.loads(text)
        if told["state"] != state or told["files"] != _left(directory):
            return None
        with open_regular(directory.report_json) as file:
            data = file.read()
        return from_json(data) if hashlib.sha256(data).hexdigest() == told["report"] else None
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def keep_report(directory: RunDirectory, state: str | None) -> None:
    """Have the report that now lies in a run directory kept.

    Args:
        state: what `state_of` told before the run was read; where it tells something else by now, the report is not
            kept.
    """
    key = users_key()
    if key is None or state is None or state != state_of(directory):
        return
    with suppress(OSError):
        told = {
            "state": state,
            "files": _left(directory),
            "report": hashlib.sha256(directory.report_json.read_bytes()).hexdigest(),
        }
        write_signed(_stamp(directory), json.dumps(told).encode(), key)


def _stamp(directory: RunDirectory) -> Path:
    return directory.digest / "report.json"


def _faces(directory: RunDirectory) -> tuple[Path, Path, Path]:
    return directory.report_html, directory.report_json, directory.timeline


def _left(directory: RunDirectory) -> list[list[int]]:
    """What identifies the files that a report left.

    Raises:
        OSError: one of them is not there.
    """
    return [[status.st_ino, *_times(status)] for status in (path.lstat() for path in _faces(directory))]


def _times(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _entries(folder: str | Path, without: set[str]) -> Iterator[os.DirEntry[str]]:
    """All that lies in a folder but what has one of these names, and in the folders in it, in one order."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name in without:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, without)
        else:
            yield entry
