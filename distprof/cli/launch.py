"""`distprof launch`: torchrun, with every rank recorded and the report at the end."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.distributed.run import get_args_parser

from distprof.cli.capture_options import add_capture_options, capture_config
from distprof.cli.parser import Parser
from distprof.launcher.local import World, launch, why_refused
from distprof.launcher.spec import LaunchSpec, new_run_dir, versions
from distprof.run.config import ConfigError, sample_of_ranks
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError, create_run
from distprof.run.secrets import mask_arguments

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


def build_parser() -> LaunchParser:
    """torchrun's own parser, and our options in a group of their own."""
    parser = LaunchParser(
        get_args_parser(),
        prog="distprof launch",
        description="Run a training exactly as torchrun would, record every rank, and report.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
    )
    ours = parser.add_argument_group("distprof")
    ours.add_argument(  # argparse finds it ambiguous by itself
        "--nproc", dest="nproc_per_node", default=argparse.SUPPRESS, help="Short for --nproc-per-node."
    )
    ours.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="Where the run is kept. Default: ./distprof-runs/<time>-<script>."
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
    world = World.of(arguments)
    window_ranks = _window_ranks(parser, arguments, world)
    try:
        run_dir = arguments.run_dir or new_run_dir(arguments.training_script, time.strftime("%Y%m%d-%H%M%S"))
        capture = capture_config(arguments, run_dir, window_ranks)
        command = mask_arguments(["distprof", "launch", *argv])
        directory, manifest = create_run(
            run_dir.absolute(),
            run_id=None if world.nodes == 1 else arguments.rdzv_id,
            command=command,
            world_size=world.size,
            config=asdict(capture),
            versions=versions(),
        )
    except (RunDirectoryError, ConfigError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename} cannot be written ({error.strerror}): give another --run-dir")
    spec = LaunchSpec(command=command, script=arguments.training_script, capture=capture)
    try:
        launch(spec, arguments, world, directory, manifest)
    finally:
        if not arguments.no_report:
            _report(directory)
    return 0


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


def _report(directory: RunDirectory) -> None:
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


@contextmanager
def _interruptible() -> Iterator[None]:
    """Inside it a signal to end raises KeyboardInterrupt; torch's handlers, which stay, raise an ordinary exception."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
