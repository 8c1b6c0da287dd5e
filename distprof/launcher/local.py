"""Launching on this host, as one agent of a job: torch's own elastic launch, called as torchrun calls it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes, run

from distprof.launcher.spec import LaunchSpec
from distprof.run.activities import why_unavailable
from distprof.run.config import OWNER_VARIABLE
from distprof.run.directory import RunDirectory
from distprof.run.manifest import Manifest


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
            Exception: what torchrun raises for the same command line.
        """
        fewest, most = parse_min_max_nnodes(arguments.nnodes)
        per_node = determine_local_world_size(arguments.nproc_per_node)
        return cls(most, per_node, most * per_node if fewest == most else None)

    @property
    def largest(self) -> int:
        """Ranks of the whole job at most."""
        return self.nodes * self.ranks_per_node


def launch(
    spec: LaunchSpec, arguments: argparse.Namespace, world: World, directory: RunDirectory, manifest: Manifest
) -> None:
    """Run the training to its end; how it ended goes into the manifest.

    Raises:
        BaseException: exactly what torchrun would have raised.
    """
    os.environ.update(spec.environment(os.environ))
    os.environ.pop(OWNER_VARIABLE, None)  # launched from inside a rank, this is a run of its own
    here = _ranks_here(arguments, world)  # before torch fills in what was left open
    try:
        record(run)(arguments)
    except BaseException as error:
        _note_end(directory, manifest, error, _absent(directory, here, error, arguments))
        raise
    _note_end(directory, manifest, None, _absent(directory, here, None, arguments))


def _ranks_here(arguments: argparse.Namespace, world: World) -> range:
    """Global ranks that this agent starts, as far as that is known before the rendezvous."""
    if world.nodes == 1:
        return range(world.ranks_per_node)
    if arguments.rdzv_backend == "static" and not arguments.standalone:
        first = arguments.node_rank * world.ranks_per_node
        return range(first, first + world.ranks_per_node)
    return range(0)


def _absent(
    directory: RunDirectory, here: range, error: BaseException | None, arguments: argparse.Namespace
) -> dict[str, str]:
    """Ranks whose processes were started and that left nothing, by global rank: why that may be."""
    if error is not None and not isinstance(error, ChildFailedError | SignalException):
        return {}  # torch may not have come to starting them
    attempts = directory.attempts()
    present = {files.rank for files in directory.ranks(attempts[-1])} if attempts else set()
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


def _note_end(directory: RunDirectory, manifest: Manifest, error: BaseException | None, absent: dict[str, str]) -> None:
    ended: dict[str, Any] = {"unix_ns": time.time_ns(), "error": None, "failures": {}, "absent": absent}
    if isinstance(error, ChildFailedError):
        ended["error"] = "a rank failed"
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
    manifest.ended = ended
    try:
        manifest.write(directory)
    except OSError as failure:
        print(f"distprof: {directory.manifest} could not be written: {failure}", file=sys.stderr)
