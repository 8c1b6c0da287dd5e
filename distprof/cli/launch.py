"""`distprof launch`: torchrun, with every rank recorded and the report at the end."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from distprof.launcher.local import is_one_node, launch, torchrun_parser, versions, world_size
from distprof.launcher.spec import LaunchSpec, default_run_dir
from distprof.run.config import RECORDS, CaptureConfig, ConfigError, Schedule
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError, create_run

_EPILOG = """examples:
  distprof launch --nproc-per-node 4 train.py --epochs 3
  distprof launch --standalone --nproc 2 --schedule wait=10,warmup=1,active=3 -m pkg.train
"""


def build_parser() -> argparse.ArgumentParser:
    """torchrun's own parser, and our options in a group of their own."""
    parser = torchrun_parser()
    parser.prog = "distprof launch"
    parser.description = "Run a training exactly as torchrun would, record every rank, and report."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    ours = parser.add_argument_group("distprof")
    ours.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="Where the run is kept. Default: ./distprof-runs/<time>-<script>."
    )
    ours.add_argument(
        "--schedule",
        type=_schedule,
        default=Schedule(),
        metavar="wait=5,warmup=2,active=5,repeat=1",
        help="When the Kineto window is open, in steps.",
    )
    ours.add_argument(
        "--window-ranks", default="all", metavar="all|0,8", help="Which ranks record a Kineto window. Default: all."
    )
    ours.add_argument(
        "--no-window",
        action="store_true",
        help="Record zones and collectives only: the cheapest mode; stragglers are still found.",
    )
    ours.add_argument(
        "--record",
        type=_record,
        default=[],
        metavar=",".join(RECORDS),
        help="What the window records beside times; each costs.",
    )
    ours.add_argument("--no-report", action="store_true", help="Do not make the report at the end.")
    return parser


def _schedule(text: str) -> Schedule:
    try:
        return Schedule.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _record(text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in RECORDS:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(RECORDS)}")
    return words


def _window_ranks(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> list[int] | None:
    if arguments.no_window:
        return []
    if arguments.window_ranks == "all":
        return None
    try:
        return [int(word) for word in arguments.window_ranks.split(",")]
    except ValueError:
        parser.error(f"--window-ranks {arguments.window_ranks!r}: give 'all' or ranks such as 0,8")


def main(argv: list[str]) -> int:
    """Launch. The exit status is torchrun's; what torchrun would raise is raised."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    run_dir = arguments.run_dir or default_run_dir(arguments.training_script, time.strftime("%Y%m%d-%H%M%S"))
    capture = CaptureConfig(
        run_dir=str(run_dir.absolute()),
        window_ranks=_window_ranks(arguments, parser),
        schedule=arguments.schedule,
        record=arguments.record,
    )
    command = ["distprof", "launch", *argv]
    try:
        directory, manifest = create_run(
            run_dir.absolute(),
            run_id=None if is_one_node(arguments) else arguments.rdzv_id,
            command=command,
            world_size=world_size(arguments),
            config=asdict(capture),
            versions=versions(),
        )
    except RunDirectoryError as error:
        print(f"distprof launch: error: {error}", file=sys.stderr)
        return 2
    spec = LaunchSpec(command=command, script=arguments.training_script, capture=capture)
    try:
        launch(spec, arguments, directory, manifest)
    finally:
        if not arguments.no_report:
            _report(directory)
    return 0


def _report(directory: RunDirectory) -> None:
    """Make the report; that it fails never changes how the launch ends."""
    try:
        from distprof.report.make import make_report

        make_report(directory.path)
    except (Exception, SystemExit) as error:  # rich exits when the reader of a pipe is gone
        print(
            f"distprof: the report could not be made ({type(error).__name__}: {error}). "
            f"The recordings are in {directory.path}; try `distprof report {directory.path}`.",
            file=sys.stderr,
        )
