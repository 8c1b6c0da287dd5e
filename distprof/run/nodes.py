"""What the launcher's agents know: which ranks each started in which attempt, what the scheduler told, how it ended.

Each agent writes one file of its own, and nobody else does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distprof.run.directory import RunDirectory
from distprof.run.files import check_inside, create_json, read_json, write_json
from distprof.run.identity import boot_id, host_name
from distprof.run.manifest import Manifest, read_manifest, why_no_end

SCHEMA = "distprof.node.v1"
RANK_FAILED = "a rank failed"
_MOST_NAMES = 1000


@dataclass(slots=True)
class Node:
    """An agent of the launcher.

    Attributes:
        attempts: one row for each rendezvous: `attempt`, `node_rank`, `nodes`, `unix_ns`.
        told: what signals the scheduler sent: `signal`, `unix_ns`.
        scheduler: the scheduler's own ids of the job and this task, as far as there is one.
        ended: as the manifest's, of this agent's ranks; None: it has not come to its end.
    """

    host: str = field(default_factory=host_name)
    boot_id: str | None = field(default_factory=boot_id)
    pid: int = field(default_factory=os.getpid)
    started_unix_ns: int = field(default_factory=time.time_ns)
    scheduler: dict[str, str] = field(default_factory=dict)
    attempts: list[dict[str, int]] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, Any] | None = None
    schema: str = SCHEMA

    @property
    def attempt(self) -> int | None:
        """The attempt that it came to last; None where it came to no rendezvous."""
        return self.attempts[-1]["attempt"] if self.attempts else None

    @property
    def rank(self) -> int | None:
        """Its number among the agents in that attempt."""
        return self.attempts[-1]["node_rank"] if self.attempts else None


@dataclass(slots=True)
class NodeFile:
    """The file of one agent, and what stands in it."""

    path: Path
    node: Node

    @classmethod
    def create(cls, directory: RunDirectory, scheduler: dict[str, str]) -> NodeFile:
        """Make this process's file.

        Raises:
            OSError: the directory cannot be written.
        """
        directory.nodes.mkdir(exist_ok=True)
        node = Node(scheduler=scheduler)
        names = [f"{node.host}-{node.pid}", *(f"{node.host}-{node.pid}-{number}" for number in range(2, _MOST_NAMES))]
        for name in names:  # in a container each start may have the same number
            path = directory.nodes / f"{name}.json"
            if create_json(path, asdict(node)):
                return cls(path, node)
        raise FileExistsError(f"{directory.nodes} holds {_MOST_NAMES} files of this host and process number")

    def write(self) -> None:
        """Write it anew.

        Raises:
            OSError: it cannot be written.
        """
        write_json(self.path, asdict(self.node))


def read_nodes(directory: RunDirectory) -> list[Node]:
    """All agents' files that can be read, in the order of their start."""
    nodes = [node for path in _paths(directory) if (node := _read(path, directory)) is not None]
    return sorted(nodes, key=lambda node: (node.started_unix_ns, node.host, node.pid))


def _paths(directory: RunDirectory) -> list[Path]:
    return list(directory.nodes.glob("[!.]*.json")) if directory.nodes.is_dir() else []


def _read(path: Path, directory: RunDirectory) -> Node | None:
    try:
        check_inside(path, directory.path)
        return _node(read_json(path))
    except (OSError, ValueError):
        return None


def _node(value: Any) -> Node | None:
    """None for what is no agent's file."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return None
    told = {key: value[key] for key in Node.__slots__ if key in value}
    numbers = ("attempt", "node_rank", "nodes", "unix_ns")
    ended = told.get("ended")
    fits = (
        isinstance(told.get("host"), str)
        and isinstance(told.get("boot_id"), str | None)
        and all(isinstance(told.get(key), int) for key in ("pid", "started_unix_ns"))
        and isinstance(told.get("scheduler"), dict)
        and all(isinstance(each, str) for pair in told["scheduler"].items() for each in pair)
        and _rows(told.get("attempts"), dict.fromkeys(numbers, int))
        and _rows(told.get("told"), {"signal": str, "unix_ns": int})
        and (ended is None or (isinstance(ended, dict) and why_no_end(ended) is None))
    )
    return Node(**told) if fits else None


def _rows(value: Any, types: dict[str, type]) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, dict) and all(type(row.get(name)) is kind for name, kind in types.items()) for row in value
    )


def end_of(manifest: Manifest | None, nodes: Iterable[Node], attempt: int) -> dict[str, Any]:
    """How an attempt ended: what its agents say together, else what the manifest does; empty where nobody says.

    Of the ranks that several agents saw fail first, the earliest was the first.
    """
    ends = [node.ended for node in nodes if node.attempt == attempt and node.ended is not None]
    if not ends:
        return (manifest.ended or {}) if manifest is not None else {}
    errors = [end["error"] for end in ends if end.get("error")]
    failures = {rank: failure for end in ends for rank, failure in end.get("failures", {}).items()}
    first = min((rank for rank, failure in failures.items() if failure.get("first")), key=_when(failures), default=None)
    return {
        "unix_ns": max(end.get("unix_ns") or 0 for end in ends),
        "error": next((error for error in errors if error == RANK_FAILED), errors[0] if errors else None),
        "failures": {rank: {**failure, "first": rank == first} for rank, failure in failures.items()},
        "absent": {rank: text for end in ends for rank, text in end.get("absent", {}).items()},
    }


def exit_code(directory: RunDirectory) -> int:
    """The exit code of the rank that failed first in the last attempt, 128 + n if signal n killed it, as in a shell;
    1 where a launch failed otherwise, or left no end; 0 if all went well.

    Raises:
        RunDirectoryError: it is no run directory.
    """
    nodes = read_nodes(directory)
    attempt = max((node.attempt for node in nodes if node.attempt is not None), default=-1)
    end = end_of(read_manifest(directory), nodes, attempt)
    for failure in end.get("failures", {}).values():
        code = failure.get("exit_code")
        if failure.get("first") and isinstance(code, int):
            return code if code >= 0 else 128 - code
    return 1 if end.get("error") or not end else 0


def _when(failures: dict[str, Any]) -> Any:
    def when(rank: str) -> float:
        moment = failures[rank].get("unix_s")
        return float(moment) if isinstance(moment, int | float) else float("inf")

    return when


def wait_for_nodes(directory: RunDirectory, attempt: int, patience_s: float) -> list[Node]:
    """Wait until all agents of an attempt that can be seen from here have ended; those that have not.

    Files of agents that are known to be over are not read again.
    """
    deadline = time.monotonic() + patience_s
    pause = 0.1
    over: set[Path] = set()
    while True:
        read = {path: _read(path, directory) for path in _paths(directory) if path not in over}
        over |= {
            path for path, node in read.items() if node and (node.ended is not None or (node.attempt or 0) < attempt)
        }
        waited_for = [node for path, node in read.items() if node and path not in over and node.attempt == attempt]
        if not waited_for or time.monotonic() > deadline:
            return waited_for
        time.sleep(pause)
        pause = min(2.0, 1.5 * pause)
