"""`distprof sweep`: which settings are better, by how much and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.experiment.sweep import completion
from distprof.experiment.sweep.app import main as run_app
from distprof.run.secrets import mask_arguments

if TYPE_CHECKING:
    from distprof.cli.sweep_options import SweepParser


def build_parser() -> SweepParser:
    """The command's options, torchrun's, and those of Hydra."""
    from distprof.cli import sweep_options  # with torch, which nobody who completes a word wants to wait for

    return sweep_options.build_parser()


def main(argv: list[str]) -> int:
    """Sweep. Exit status 0; 1 where a point failed; 2 with one line on bad usage; 3 if a condition holds; 130 where it
    was interrupted, after what is known."""
    if completion.is_asked(argv):
        return run_app(argv, []).status
    from distprof.cli.fail_if import CONDITION_HOLDS, tell_failed
    from distprof.cli.sweep_options import words_for_hydra

    arguments, overrides = build_parser().split(argv)
    outcome = run_app(words_for_hydra(arguments, overrides), mask_arguments(["distprof", "sweep", *argv]))
    if outcome.found is None or outcome.status not in (0, 1):
        return outcome.status
    return (
        CONDITION_HOLDS if tell_failed(arguments.fail_if, outcome.found, outcome.found.not_observed) else outcome.status
    )
