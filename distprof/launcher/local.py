"""Launching on this host, as one agent of a job: torch's own elastic launch, called as torchrun calls it."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.run import determine_local_world_size, get_args_parser, parse_min_max_nnodes, run

from distprof._version import __version__
from distprof.launcher.spec import LaunchSpec
from distprof.run.directory import RunDirectory
from distprof.run.manifest import Manifest


def torchrun_parser() -> argparse.ArgumentParser:
    """The installed torchrun's parser, with the alias `--nproc`, which argparse would find ambiguous."""
    parser = get_args_parser()
    parser.add_argument("--nproc", dest="nproc_per_node", default=argparse.SUPPRESS, help="Short for --nproc-per-node.")
    return parser


def is_one_node(arguments: argparse.Namespace) -> bool:
    """Whether the launch is of one host only."""
    return bool(parse_min_max_nnodes(arguments.nnodes)[1] == 1)


def world_size(arguments: argparse.Namespace) -> int | None:
    """Ranks of the whole job; None where the number of nodes is a range."""
    fewest, most = parse_min_max_nnodes(arguments.nnodes)
    return int(most * determine_local_world_size(arguments.nproc_per_node)) if fewest == most else None


def launch(spec: LaunchSpec, arguments: argparse.Namespace, directory: RunDirectory, manifest: Manifest) -> None:
    """Run the training to its end; how it ended goes into the manifest.

    Raises:
        BaseException: exactly what torchrun would have raised.
    """
    os.environ.update(spec.environment(os.environ))
    try:
        record(run)(arguments)
    except BaseException as error:
        _note_end(directory, manifest, error)
        raise
    _note_end(directory, manifest, None)


def _note_end(directory: RunDirectory, manifest: Manifest, error: BaseException | None) -> None:
    ended: dict[str, Any] = {"unix_ns": time.time_ns(), "error": None, "failures": {}}
    if isinstance(error, ChildFailedError):
        ended["error"] = "a rank failed"
        ended["failures"] = {
            str(rank): {
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


def versions() -> dict[str, str]:
    """Versions of what launches."""
    return {"distprof": __version__, "torch": torch.__version__, "python": platform.python_version()}
