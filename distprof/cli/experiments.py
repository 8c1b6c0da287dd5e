"""What the commands that launch experiments share: options, progress, and how they end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from distprof.cli.launch import LaunchParser
from distprof.experiment.core import Experiment, Plan, Setup, prepare, read, run, write
from distprof.experiment.launching import Training
from distprof.experiment.progress import ProgressLines, parse_duration
from distprof.experiment.settings import Point
from distprof.launcher.spec import versions
from distprof.run.config import ConfigError
from distprof.run.manifest import RunDirectoryError

INTERRUPTED = 130


class ExperimentParser(LaunchParser):
    """torchrun's options, and those of an experiment in a group of their own.

    Args:
        name: the command.
        repeats: launches of each point, if the user does not say.
    """

    def __init__(self, name: str, *, repeats: int, description: str, epilog: str) -> None:
        super().__init__(
            get_args_parser(),
            prog=f"distprof {name}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.name = name
        self.ours = self.add_argument_group("distprof")
        self.ours.add_argument(
            "--nproc", dest="nproc_per_node", default=argparse.SUPPRESS, help="Short for --nproc-per-node."
        )
        add = self.ours.add_argument
        add("--steps", type=_positive, default=40, metavar="N", help="Steps measured in each launch. Default: 40.")
        add(
            "--warmup",
            type=_positive,
            default=10,
            metavar="N",
            help="Steps after the first one that are not measured: workers start, and what they prepared is used up. "
            "The training is ended after warm-up and measured steps. Default: 10.",
        )
        add(
            "--repeats",
            type=_positive,
            default=repeats,
            metavar="N",
            help=f"Launches of each point, at most. Default: {repeats}.",
        )
        add(
            "--budget",
            type=_duration,
            metavar="20min",
            help="Time that all launches may take (s, min or h); with less of it there are fewer repeats.",
        )
        add(
            "--out",
            type=Path,
            metavar="DIR",
            help="Where results, runs and logs are kept. Default: ./distprof-runs/<command>-<script>-<key>. The same "
            "command again goes on there, and launches only what is missing.",
        )
        add("--seed", type=int, default=0, metavar="N", help="See `distprof launch`. Default: 0.")

    def setup(self, arguments: argparse.Namespace, argv: list[str], points: list[Point]) -> Setup:
        """Find the experiment's folder; what is wrong with the command line ends the process with status 2."""
        try:
            if parse_min_max_nnodes(arguments.nnodes) != (1, 1):
                self.error("--nnodes: experiments launch on this host only")
            return prepare(
                self.name,
                command=["distprof", self.name, *argv],
                training=Training.of(arguments, get_args_parser()),
                points=points,
                steps=arguments.steps,
                warmup=arguments.warmup,
                versions=versions(),
                capture=[
                    "--checksum",
                    f"--seed={arguments.seed}",
                    f"--stop-after={1 + arguments.warmup + arguments.steps}",
                ],
                folder=arguments.out,
            )
        except (ConfigError, RunDirectoryError) as error:
            self.error(str(error))
        except OSError as error:
            self.os_error(error)

    def measure(
        self,
        setup: Setup,
        plan: Plan,
        judge: Callable[[Experiment], Any],
    ) -> tuple[Experiment, bool]:
        """Launch what is missing, and keep what it says as the experiment's result.

        Returns:
            The experiment, and whether the user interrupted it.
        """
        interrupted = False
        try:
            try:
                with ProgressLines() as watch:
                    experiment = run(setup.experiment, setup.folder, plan, setup.launcher, watch)
            except KeyboardInterrupt:
                experiment, interrupted = read(setup.folder) or setup.experiment, True
            experiment = replace(experiment, result=judge(experiment))
            write(experiment, setup.folder)
        except (ConfigError, RunDirectoryError) as error:
            self.error(str(error))
        except OSError as error:
            self.os_error(error)
        return experiment, interrupted


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
