"""`distprof env`: arm what any other launcher starts."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from distprof.cli.capture_options import add_capture_options, capture_config
from distprof.cli.parser import Parser
from distprof.launcher.env import shell_lines
from distprof.launcher.slurm import SlurmError, SlurmJob
from distprof.launcher.spec import LaunchSpec, versions
from distprof.run.config import ConfigError
from distprof.run.manifest import RunDirectoryError, create_run

_EPILOG = """examples:
  eval "$(distprof env --run-dir runs/a)"
  srun --ntasks 8 python train.py     # or torchrun, mpirun, accelerate launch, plain python
  distprof report runs/a

Evaluate it once, where the launcher is started, and give each run a directory of its own that all hosts see. Where
hosts share none, evaluate it on each with the same --run-id, and give `distprof report` all the directories.
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof env",
        description="Make a run directory and print the `export ...` lines that arm what a shell starts after them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ours = parser.add_argument_group("capture")
    ours.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="Where the run is kept.")
    ours.add_argument(
        "--run-id",
        metavar="ID",
        help="What all hosts and attempts of one run share: with the same one they join its directory. Default: the "
        "SLURM job; elsewhere each run has one of its own.",
    )
    add_capture_options(ours)
    return parser


def main(argv: list[str]) -> int:
    """Print the lines. Exit status 0, or 2 with one line if the directory cannot be used."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.window_ranks == "auto":
        parser.error("--window-ranks auto needs to know the world, and here nobody does: name ranks, such as 0,8")
    window_ranks = None if arguments.window_ranks == "all" else arguments.window_ranks
    try:
        capture = capture_config(arguments, arguments.run_dir, window_ranks)
    except ConfigError as error:
        parser.error(str(error))
    spec = LaunchSpec(command=["distprof", "env", *argv], script="", capture=capture)
    try:
        job = SlurmJob.of(os.environ)
        create_run(
            arguments.run_dir.absolute(),
            run_id=arguments.run_id or (None if job is None else job.run_id(arguments.run_dir.absolute())),
            command=spec.command,
            world_size=None,
            config=asdict(capture),
            versions=versions(),
            join=arguments.run_id is not None or (job is not None and job.restarts > 0),
        )
    except (RunDirectoryError, SlurmError) as error:
        parser.error(str(error))
    print(shell_lines(spec, os.environ))
    return 0
