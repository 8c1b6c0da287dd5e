"""The digest: the tables of a run directory as they were read, kept in it, so that reading them again takes no time.

<run>/digest/<table>.arrow      each table of `Tables`
<run>/digest/digest.json        a signature, and in its second line everything else, with the tables' checksums

A digest serves only who made it, for the files that it was made of. Everything that came with a directory from
elsewhere lacks this user's signature and is never opened; it is replaced. Nothing here is an error: without a digest
the recordings are read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import polars as pl

from distprof._version import __version__
from distprof.run.directory import RunDirectory
from distprof.run.files import open_regular, write_atomic
from distprof.run.manifest import read_manifest
from distprof.run.signing import is_own_folder, read_signed, users_key, write_signed
from distprof.trace.loaded import Run
from distprof.trace.tables import Tables

_SCHEMA = "distprof.digest.v1"
_MOST_BYTES = 1 << 30  # of a table: reading it back takes as much memory once more
_NOT_KEPT = ("directory", "manifest", "tables")  # of a run: they are told, read anew, or stand in files of their own


def read_with_digest(directory: RunDirectory, read: Callable[[], Run]) -> Run:
    """A run from its digest, else by `read`; then its digest is made.

    Raises:
        RunDirectoryError: as `read`.
    """
    key = users_key()
    state = None if key is None else _state(directory)
    if key is None or state is None:
        return read()
    run = _from_digest(directory, state, key)
    if run is None:
        run = read()
        if _state(directory) == state:  # nobody wrote meanwhile
            with suppress(OSError):
                _make(run, state, key)
    return run


def _state(directory: RunDirectory) -> str | None:
    """What the recordings are, and who reads them; it changes with each of both. None where links are among them."""
    listed: list[Any] = [_SCHEMA, __version__, str(directory.path)]
    folders = [directory.path, *map(directory.attempt, directory.attempts())]
    try:
        entries = [entry for folder in folders[1:] for entry in os.scandir(folder)]
        entries += [entry for entry in os.scandir(directory.path) if entry.name == directory.manifest.name]
        for entry in sorted(entries, key=lambda entry: entry.path):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return None
            # A change of mode changes ctime only, and what can be read.
            listed.append((entry.path, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except OSError:
        return None
    # In a working tree the reader changes without its version.
    package = Path(__file__).parents[1]
    for source in sorted([*package.glob("run/*.py"), *package.glob("trace/*.py")]):
        status = source.stat()
        listed.append((source.name, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _from_digest(directory: RunDirectory, state: str, key: bytes) -> Run | None:
    try:
        text = read_signed(directory.digest / "digest.json", key)
        if text is None:
            return None
        told = json.loads(text)
        if told["state"] != state:
            return None
        values = _typed(Tables, told["values"])
        for name, checksum in told["tables"].items():
            values[name] = _frame(directory.digest / f"{name}.arrow", checksum)
        tables = Tables(**values)
        return Run(directory, read_manifest(directory), tables=tables, **_typed(Run, told["run"]))
    except (OSError, ValueError):  # ValueError: a table is not the one that was written
        return None


def _frame(path: Path, checksum: str) -> pl.DataFrame:
    """A table, from the very bytes that were checked.

    Raises:
        ValueError: it is not the one that was written.
    """
    with open_regular(path) as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise ValueError(f"{path} was changed")
    return pl.read_ipc(data)


def _typed(of: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """A dataclass's fields from what JSON made of them."""
    types = get_type_hints(of)
    return {
        name: msgspec.convert(value, types[name], str_keys=True, dec_hook=lambda kind, text: kind(text))
        for name, value in values.items()
    }


def _make(run: Run, state: str, key: bytes) -> None:
    """Write the digest; its signed file comes last.

    Raises:
        OSError: it cannot be written, or its place is taken by something else.
    """
    tables = {field.name: getattr(run.tables, field.name) for field in fields(Tables)}
    frames = {name: table for name, table in tables.items() if isinstance(table, pl.DataFrame)}
    if any(frame.estimated_size() > _MOST_BYTES for frame in frames.values()):
        return
    folder = run.directory.digest
    folder.mkdir(exist_ok=True)
    if not is_own_folder(folder):
        return
    checksums = {}
    for name, frame in frames.items():
        buffer = io.BytesIO()
        frame.write_ipc(buffer, compression="lz4")
        data = buffer.getvalue()
        write_atomic(folder / f"{name}.arrow", data)
        checksums[name] = hashlib.sha256(data).hexdigest()
    told = {
        "state": state,
        "tables": checksums,
        "values": {name: _plain(value) for name, value in tables.items() if name not in frames},
        "run": {field.name: _plain(getattr(run, field.name)) for field in fields(Run) if field.name not in _NOT_KEPT},
    }
    write_signed(folder / "digest.json", json.dumps(told).encode(), key)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)
