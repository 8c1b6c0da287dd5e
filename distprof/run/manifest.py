"""`run.json`: what was launched, with which capture settings, and how each attempt ended."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distprof.run.directory import RunDirectory
from distprof.run.files import check_inside, create_json, read_json, write_json

SCHEMA = "distprof.run.v1"
# Files that claim more are broken, or made to exhaust the memory: a report has a row for each rank.
MOST_RANKS = 1 << 20
_TYPES: dict[str, tuple[type, ...]] = {
    "run_id": (str,),
    "command": (list,),
    "world_size": (int, type(None)),
    "config": (dict,),
    "versions": (dict,),
    "started_unix_ns": (int,),
    "ended": (dict, type(None)),
}
_DIGITS = 10  # of a rank
_MAKING_S = 2.0  # that another node may take to write the manifest
_SHOWN = 60  # characters of a wrong value


class RunDirectoryError(Exception):
    """The run directory cannot be used; the message says what to do instead."""


@dataclass(slots=True)
class Manifest:
    """The manifest. `ended` holds how the launch ended: time, exit code, failures by global rank."""

    run_id: str
    command: list[str]
    world_size: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    started_unix_ns: int = 0
    ended: dict[str, Any] | None = None
    schema: str = SCHEMA

    def write(self, directory: RunDirectory) -> None:
        """Write it to `directory`, atomically."""
        write_json(directory.manifest, asdict(self))


def read_manifest(directory: RunDirectory) -> Manifest:
    """Read a run directory's manifest.

    Raises:
        RunDirectoryError: there is none, or it is not one of ours.
    """
    if not directory.manifest.is_file():
        raise RunDirectoryError(
            f"{directory.path} has no run.json, so it is no run directory. "
            "Give the folder that `distprof launch` printed."
        )
    try:
        check_inside(directory.manifest, directory.path)
        value = read_json(directory.manifest)
    except ValueError as error:
        raise RunDirectoryError(f"{error}.") from error
    except OSError as error:
        raise RunDirectoryError(f"{directory.manifest} cannot be read ({error.strerror}).") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise RunDirectoryError(f"{directory.manifest} is not a distprof manifest ({SCHEMA}).")
    known = {key: value[key] for key in Manifest.__slots__ if key in value}
    wrong = _wrong(known)
    if wrong is not None:
        raise RunDirectoryError(f"{directory.manifest} is broken: {wrong}.")
    try:
        return Manifest(**known)
    except TypeError as error:
        raise RunDirectoryError(f"{directory.manifest} is incomplete: {error}.") from error


def _wrong(values: dict[str, Any]) -> str | None:
    """What in a manifest has another type than it should, in words; None if nothing has."""
    for name, types in _TYPES.items():
        if name in values and type(values[name]) not in types:
            return f"{name} is {_shown(values[name])}"
    if not all(isinstance(word, str) for word in values.get("command", ())):
        return f"command is {_shown(values['command'])}"
    wrong = why_no_end(values.get("ended") or {})
    return None if wrong is None else f"ended.{wrong}"


def why_no_end(ended: dict[str, Any]) -> str | None:
    """What in an account of how a launch ended has another type than it should, in words; None if nothing has."""
    for name, inner in (("failures", dict), ("absent", str)):
        by_rank = ended.get(name, {})
        if not isinstance(by_rank, dict):
            return f"{name} is {_shown(by_rank)}"
        for rank, told in by_rank.items():
            if not (rank.isascii() and rank.isdigit() and len(rank) < _DIGITS and isinstance(told, inner)):
                return f"{name}[{_shown(rank)}] is {_shown(told)}"
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def create_run(
    path: Path,
    *,
    run_id: str | None,
    command: list[str],
    world_size: int | None,
    config: dict[str, Any],
    versions: dict[str, str],
    join: bool = True,
) -> tuple[RunDirectory, Manifest]:
    """Create a run directory, or join the one that has the same run id: another node of the job, or another attempt.

    Any number of hosts may do so at once: one of them makes the manifest, the others join it.

    Args:
        path: where; it may exist if it is empty or belongs to the same run.
        run_id: the job's id where there is one that all nodes and attempts share, else None.
        command: the command line as it was typed.
        world_size: ranks of the whole job, where that is known beforehand.
        config: capture settings.
        versions: of what launches.
        join: whether there may be another node or attempt with this id; False: the directory must be empty.

    Raises:
        RunDirectoryError: it holds something else; nothing is overwritten.
    """
    directory = RunDirectory(path)
    if path.is_dir() and _is_taken(directory, may_come=join and run_id is not None):
        return directory, _joined(directory, run_id if join else None)
    try:
        path.mkdir(parents=True, exist_ok=True)
        manifest = Manifest(
            run_id=run_id or uuid.uuid4().hex,
            command=command,
            world_size=world_size,
            config=config,
            versions=versions,
            started_unix_ns=time.time_ns(),
        )
        if not create_json(directory.manifest, asdict(manifest)):
            return directory, _joined(directory, run_id if join else None)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be written ({error.strerror}). Choose another --run-dir.") from error
    return directory, manifest


def _is_taken(directory: RunDirectory, *, may_come: bool) -> bool:
    """Whether a directory holds something; another node that is just making the manifest is waited for a moment."""
    deadline = time.monotonic() + _MAKING_S
    while not directory.manifest.exists():
        names = [entry.name for entry in directory.path.iterdir()]
        if not names:
            return False
        if not may_come or any(not name.startswith(f".{directory.manifest.name}.") for name in names):
            return True
        if time.monotonic() > deadline:
            return False  # what a process that was killed left
        time.sleep(0.05)
    return True


def _joined(directory: RunDirectory, run_id: str | None) -> Manifest:
    if run_id is not None and directory.manifest.exists():
        manifest = read_manifest(directory)
        if manifest.run_id == run_id:
            return manifest
    raise RunDirectoryError(f"{directory.path} is not empty and belongs to another run. Choose another --run-dir.")
