"""`distprof launch`: torchrun, with every rank recorded and the report at the end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch.distributed.run import get_args_parser

from distprof.cli.capture_options import add_capture_options, capture_config
from distprof.cli.parser import Parser
from distprof.launcher.local import Place, World, launch, why_refused
from distprof.launcher.slurm import SlurmError, SlurmJob, settle
from distprof.launcher.spec import LaunchSpec, new_run_dir, versions
from distprof.launcher.staging import stage
from distprof.run.config import CaptureConfig, ConfigError, sample_of_ranks
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError, create_run
from distprof.run.nodes import NodeFile, read_nodes, wait_for_nodes
from distprof.run.scheduled import is_scheduled
from distprof.run.secrets import mask_arguments

# For the other hosts' ranks to end; after a failure here they may have gone with their host.
_PATIENCE_S, _PATIENCE_AFTER_FAILURE_S = 60.0, 15.0

_EPILOG = """examples:
  distprof launch --nproc-per-node 4 train.py --epochs 3
  distprof launch --standalone --nproc 2 --schedule wait=10,warmup=1,active=3 -m pkg.train
"""


class LaunchParser(Parser):
    """torchrun's parser with options of ours; what torchrun reads as an abbreviation keeps torchrun's meaning."""

    def __init__(self, torchrun: argparse.ArgumentParser, **settings: Any) -> None:
        super().__init__(parents=[torchrun], add_help=False, **settings)
        self._torchruns = {action.dest for action in torchrun._actions}

    def _get_option_tuples(self, option_string: str) -> Any:
        # argparse asks this for every word that may be one, those after the script's name included, and takes more than
        # one answer for an error.
        found: list[Any] = super()._get_option_tuples(option_string)
        theirs = [match for match in found if match[0].dest in self._torchruns]
        return theirs or (found if len(found) == 1 else [])


def build_parser(
    prog: str = "distprof launch",
    description: str = "Run a training exactly as torchrun would, record every rank, and report.",
    epilog: str = _EPILOG,
) -> LaunchParser:
    """torchrun's own parser, and our options in a group of their own."""
    parser = LaunchParser(
        get_args_parser(),
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=epilog,
    )
    ours = parser.add_argument_group("distprof")
    ours.add_argument(  # argparse finds it ambiguous by itself
        "--nproc", dest="nproc_per_node", default=argparse.SUPPRESS, help="Short for --nproc-per-node."
    )
    ours.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="Where the run is kept. Default: ./distprof-runs/<time>-<script>."
    )
    ours.add_argument(
        "--run-id",
        metavar="ID",
        help="What nodes and attempts of one run share: with the same one they join its directory. Default: --rdzv-id, "
        "or the SLURM job and step.",
    )
    ours.add_argument(
        "--stage-dir",
        type=Path,
        metavar="DIR",
        help="A folder on each host's own disk: ranks write there, and their files are moved at the end.",
    )
    add_capture_options(ours)
    ours.add_argument("--no-report", action="store_true", help="Do not make the report at the end.")
    return parser


def main(argv: list[str]) -> int:
    """Launch. The exit status is torchrun's; what torchrun would raise is raised."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if reason := why_refused(arguments.activities):
        parser.error(f"--activities {','.join(arguments.activities)}: {reason}, or give --activities auto")
    try:
        job = SlurmJob.of(os.environ)
    except SlurmError as error:
        parser.error(str(error))
    settle(arguments, job)
    try:
        world = World.of(arguments)
    except (ValueError, RuntimeError) as error:
        parser.error(f"--nnodes {arguments.nnodes}, --nproc-per-node {arguments.nproc_per_node}: {error}")
    window_ranks = _window_ranks(parser, arguments, world)
    try:
        place, capture = _place(arguments, argv, job, world, window_ranks)
    except (RunDirectoryError, ConfigError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename} cannot be written ({error.strerror}): give another --run-dir")
    spec = LaunchSpec(command=place.manifest.command, script=arguments.training_script, capture=capture)
    try:
        launch(spec, arguments, world, place)
    finally:
        if not arguments.no_report:
            _report_once(place, world)
    return 0


def _place(
    arguments: argparse.Namespace, argv: list[str], job: SlurmJob | None, world: World, window_ranks: list[int] | None
) -> tuple[Place, CaptureConfig]:
    """Make or join the run directory; where this agent and its ranks write, and what the ranks record.

    Raises:
        RunDirectoryError, ConfigError, OSError: it cannot be used.
    """
    alone = world.nodes == 1
    shared = not alone or (job is not None and job.restarts > 0)
    name = time.strftime("%Y%m%d-%H%M%S") if job is None else job.folder_name(alone=alone)
    run_dir = arguments.run_dir or new_run_dir(arguments.training_script, name, shared=shared and job is not None)
    capture = capture_config(arguments, run_dir, window_ranks)
    directory, manifest = create_run(
        run_dir.absolute(),
        run_id=arguments.run_id or _run_id(arguments, job, world, run_dir.absolute()),
        command=mask_arguments(["distprof", "launch", *argv]),
        world_size=world.size,
        config=asdict(capture),
        versions=versions(),
        join=shared or arguments.run_id is not None,
    )
    staged = None
    if arguments.stage_dir is not None:
        staged = stage(arguments.stage_dir, directory, manifest)
        capture = replace(capture, run_dir=str(staged.path))
    agent = NodeFile.create(directory, {} if job is None else job.facts())
    return Place(directory, manifest, agent, staged, scheduled=is_scheduled(os.environ)), capture


def _run_id(arguments: argparse.Namespace, job: SlurmJob | None, world: World, run_dir: Path) -> str | None:
    """What all nodes and restarts of this launch call it; None: it is alone."""
    if arguments.rdzv_id != "none":
        return str(arguments.rdzv_id)
    if job is not None:
        return job.run_id(run_dir, alone=world.nodes == 1)
    if world.nodes == 1:
        return None
    return arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port or 29500}"


def _window_ranks(parser: Parser, arguments: argparse.Namespace, world: World) -> list[int] | None:
    """The ranks that `--window-ranks` names; None: all. A rank that cannot exist is an error."""
    asked = arguments.window_ranks
    if asked == "all":
        return None
    if asked == "auto":
        return sample_of_ranks(world.largest, world.ranks_per_node)
    if asked[-1] >= world.largest:
        parser.error(f"--window-ranks: there is no rank {asked[-1]}, they go from 0 to {world.largest - 1}")
    return list(asked)


def _report_once(place: Place, world: World) -> None:
    """Make the report if this agent is the one of the job that does, when the ranks of the others have ended, too."""
    node = place.agent.node
    if world.nodes > 1 and node.attempt is None:
        return  # no rendezvous took place, and torch has said why
    if world.nodes > 1 and node.rank != 0:
        seen = read_nodes(place.directory)
        if not any(other.attempt == node.attempt and other.rank == 0 for other in seen):
            path = place.directory.path
            print(f"distprof: this host's recordings are in {path}: `distprof report` takes all hosts' directories")
        return
    if world.nodes > 1 and node.attempt is not None:
        failed = node.ended is None or node.ended["error"] is not None
        wait_for_nodes(place.directory, node.attempt, _PATIENCE_AFTER_FAILURE_S if failed else _PATIENCE_S)
    report(place.directory)


def report(directory: RunDirectory) -> None:
    """Make the report; that it fails or is interrupted never changes how the launch ends."""
    try:
        with _interruptible():
            from distprof.report.make import make_report

            make_report(directory.path)
    except KeyboardInterrupt:
        print(f"distprof: interrupted; `distprof report {directory.path}` makes the report.", file=sys.stderr)
    except (Exception, SystemExit) as error:  # rich exits when the reader of a pipe is gone
        print(
            f"distprof: the report could not be made ({type(error).__name__}: {error}). "
            f"The recordings are in {directory.path}; try `distprof report {directory.path}`.",
            file=sys.stderr,
        )


class _Interrupted(KeyboardInterrupt):
    """Not KeyboardInterrupt itself: where that has passed an `exec` of text, as dataclasses are made by, Python ends by
    SIGINT at last, whoever caught it."""


def _interrupt(*_: object) -> None:
    raise _Interrupted


@contextmanager
def _interruptible() -> Iterator[None]:
    """Inside it a signal to end raises KeyboardInterrupt; torch's handlers, which stay, raise an ordinary exception."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.signal(number, _interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
