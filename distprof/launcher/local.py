"""Launching on this host, as one agent of a job: torch's own elastic launch, called as torchrun calls it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes, run

from distprof.launcher.notices import noticing
from distprof.launcher.rendezvous import agreed_attempts
from distprof.launcher.spec import LaunchSpec
from distprof.launcher.staging import move
from distprof.run.activities import why_unavailable
from distprof.run.config import OWNER_VARIABLE
from distprof.run.directory import RunDirectory
from distprof.run.manifest import Manifest
from distprof.run.nodes import RANK_FAILED, NodeFile, end_of, read_nodes


def why_refused(activities: list[str] | None) -> str | None:
    """Why ranks on this host cannot record these activities, and the way out; None where they can."""
    reasons = (why_unavailable(activity, torch) for activity in activities or ())
    return next((reason for reason in reasons if reason is not None), None)


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that a command line asks for.

    Attributes:
        nodes: hosts; of a range of them the most.
        ranks_per_node: ranks that each agent starts.
        size: ranks of the whole job; None where the number of nodes is a range.
    """

    nodes: int
    ranks_per_node: int
    size: int | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> World:
        """Read it as torchrun does.

        Raises:
            ValueError, RuntimeError: what torchrun raises for the same command line.
        """
        fewest, most = parse_min_max_nnodes(arguments.nnodes)
        per_node = determine_local_world_size(arguments.nproc_per_node)
        return cls(most, per_node, most * per_node if fewest == most else None)

    @property
    def largest(self) -> int:
        """Ranks of the whole job at most."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent of a launch writes.

    Attributes:
        directory: the run's.
        manifest: its manifest.
        agent: this agent's own file.
        staged: where its ranks write until they have ended; None: straight into the run directory.
        scheduled: whether a scheduler may end the job, and says so by signals.
    """

    directory: RunDirectory
    manifest: Manifest
    agent: NodeFile
    staged: RunDirectory | None = None
    scheduled: bool = False

    @property
    def written(self) -> RunDirectory:
        """Where the ranks write."""
        return self.staged or self.directory


def launch(spec: LaunchSpec, arguments: argparse.Namespace, world: World, place: Place) -> None:
    """Run this agent's part of the training to its end; how it ended goes into the agent's file and the manifest.

    Raises:
        BaseException: exactly what torchrun would have raised.
    """
    os.environ.update(spec.environment(os.environ))
    os.environ.pop(OWNER_VARIABLE, None)  # launched from inside a rank, this is a run of its own
    here = _ranks_here(arguments, world)  # before torch fills in what was left open
    directories = [place.directory, *([place.staged] if place.staged else [])]
    with ExitStack() as stack:
        stack.enter_context(agreed_attempts(directories, lambda row: _note(place, place.agent.node.attempts, row)))
        if place.scheduled:
            stack.enter_context(
                noticing(world.ranks_per_node, lambda name: _note(place, place.agent.node.told, _told(name)))
            )
        try:
            record(run)(arguments)
        except BaseException as error:
            _end(place, world, error, here, arguments)
            raise
        _end(place, world, None, here, arguments)


def _told(signal_name: str) -> dict[str, Any]:
    return {"signal": signal_name, "unix_ns": time.time_ns()}


def _note(place: Place, rows: list[Any], row: Any) -> None:
    """Add a row to the agent's file; that it cannot be written is told and is no error."""
    rows.append(row)
    try:
        place.agent.write()
    except OSError as error:
        print(f"distprof: {place.agent.path} could not be written: {error}", file=sys.stderr)


def _ranks_here(arguments: argparse.Namespace, world: World) -> range:
    """Global ranks that this agent starts, as far as that is known before the rendezvous."""
    if world.nodes == 1:
        return range(world.ranks_per_node)
    if arguments.rdzv_backend == "static" and not arguments.standalone:
        first = arguments.node_rank * world.ranks_per_node
        return range(first, first + world.ranks_per_node)
    return range(0)


def _end(place: Place, world: World, error: BaseException | None, here: range, arguments: argparse.Namespace) -> None:
    """The ranks of this agent have ended: move what was staged, and note how it came."""
    absent = _absent(place, here, error, arguments)
    if place.staged is not None:
        try:
            left = move(place.staged, place.directory)
        except OSError as failure:
            left = [place.staged.path]
            print(f"distprof: {failure.filename} could not be moved or written: {failure.strerror}", file=sys.stderr)
        if left:
            print(
                f"distprof: recordings of this host are still in {place.staged.path}; "
                f"`distprof report {place.directory.path} {place.staged.path}` reads both.",
                file=sys.stderr,
            )
    _note_end(place, error, absent, alone=world.nodes == 1)


def _absent(place: Place, here: range, error: BaseException | None, arguments: argparse.Namespace) -> dict[str, str]:
    """Ranks whose processes were started and that left nothing, by global rank: why that may be."""
    if error is not None and not isinstance(error, ChildFailedError | SignalException):
        return {}  # torch may not have come to starting them
    attempts = place.written.attempts()
    attempt = place.agent.node.attempt if place.agent.node.attempt is not None else max(attempts, default=0)
    present = {files.rank for files in place.written.ranks(attempt)}
    return {str(rank): _why_absent(arguments) for rank in here if rank not in present}


def _why_absent(arguments: argparse.Namespace) -> str:
    if arguments.run_path and arguments.start_method == "fork":
        return "it was forked off the launcher, and a Python process is armed as it starts: use --start-method spawn"
    program = None if arguments.run_path else os.environ.get("PYTHON_EXEC")
    if arguments.no_python:
        program = arguments.training_script
    if program is not None:
        return (
            f"no Python process that {program} started was armed and trained: python -I, -E and -S ignore PYTHONPATH, "
            "a program may replace it, or the script came to no training step"
        )
    return "its process came to no training step: no loader, forward, backward or optimizer was called"


def _note_end(place: Place, error: BaseException | None, absent: dict[str, str], *, alone: bool) -> None:
    ended: dict[str, Any] = {"unix_ns": time.time_ns(), "error": None, "failures": {}, "absent": absent}
    if isinstance(error, ChildFailedError):
        ended["error"] = RANK_FAILED
        first, _ = error.get_first_failure()
        ended["failures"] = {
            str(rank): {
                "first": rank == first,
                "exit_code": failure.exitcode,
                "signal": failure.signal_name() if failure.exitcode < 0 else None,
                "pid": failure.pid,
                "unix_s": failure.timestamp,
                "message": str(failure.message).splitlines()[-1:],
            }
            for rank, failure in error.failures.items()
        }
    elif error is not None:
        ended["error"] = f"{type(error).__name__}: {error}"
    node = place.agent.node
    node.ended = ended
    try:
        place.agent.write()
        if node.rank == 0 or (node.rank is None and alone):  # one agent writes the manifest: all ends that are known
            attempt = node.attempt if node.attempt is not None else -1
            place.manifest.ended = end_of(None, read_nodes(place.directory), attempt) or ended
            place.manifest.write(place.directory)
    except OSError as failure:
        print(f"distprof: {failure.filename} could not be written: {failure.strerror}", file=sys.stderr)
