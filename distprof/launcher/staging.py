"""Staging: ranks write to a disk of their own host, and at the end their files are moved into the run directory."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

from distprof.run.directory import RunDirectory
from distprof.run.files import create_json
from distprof.run.manifest import Manifest


def stage(parent: Path, run: RunDirectory, manifest: Manifest) -> RunDirectory:
    """Make a folder on this host's disk that is a run directory by itself, with the run's own id.

    What a killed launcher leaves there can be read together with the run: `distprof report RUN STAGED`.

    Raises:
        OSError: it cannot be made; `filename` says which.
    """
    path = parent.absolute() / f"{run.name}-{os.getpid()}-{os.urandom(3).hex()}"
    path.mkdir(parents=True)
    staged = RunDirectory(path)
    create_json(staged.manifest, _plain(manifest))
    return staged


def _plain(manifest: Manifest) -> dict[str, object]:
    return {name: getattr(replace(manifest, ended=None), name) for name in Manifest.__slots__}


def move(staged: RunDirectory, run: RunDirectory) -> list[Path]:
    """Move all that the ranks of this host wrote into the run directory, and remove the staged one.

    A file comes under a temporary name and is renamed; nothing that is there already is replaced.

    Returns:
        Files that stay where they are, since the run directory holds others of their names.

    Raises:
        OSError: the run directory cannot be written; what was not moved is still staged.
    """
    left = []
    for number in staged.attempts():
        source, target = staged.attempt(number), run.attempt(number)
        target.mkdir(exist_ok=True)
        for path in sorted(source.iterdir()):
            there = target / path.name
            if path.name.startswith(".") or path == staged.rendezvous(number):
                continue
            if there.exists():
                left.append(path)
            else:
                _move(path, there)
    if not left:
        shutil.rmtree(staged.path, ignore_errors=True)
    return left


def _move(path: Path, there: Path) -> None:
    temporary = there.with_name(f".{there.name}.{os.getpid()}.{os.urandom(3).hex()}.tmp")
    try:
        shutil.copyfile(path, temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if temporary.stat().st_size != path.stat().st_size:
            raise OSError(errno.EIO, "it arrived incomplete", str(there))
        temporary.rename(there)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    path.unlink()
