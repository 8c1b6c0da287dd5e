"""`distprof overhead`: what recording costs this training on this machine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distprof.cli.experiments import INTERRUPTED, ExperimentParser
from distprof.experiment.core import Experiment, Plan
from distprof.experiment.overhead import WINDOW, WITHOUT, ZONES, OverheadFound, judge, points
from distprof.report.words import NULL, clean

_EPILOG = """example:
  distprof overhead --nproc-per-node 4 train.py --epochs 1
"""
_REPEATS = 6
_NAMES = {WITHOUT: "step boundaries only", ZONES: "zones", WINDOW: "zones and a window"}


def build_parser() -> ExperimentParser:
    """The command's options, and torchrun's."""
    return ExperimentParser(
        "overhead",
        repeats=_REPEATS,
        description="Measure what distprof costs a training: launches in turn with step boundaries only (as close to "
        "plain torchrun as a step can be timed: two readings of the clock around backward and the optimizer), with "
        "zones, and with a window open over all measured steps.",
        epilog=_EPILOG,
    )


def main(argv: list[str]) -> int:
    """Measure. Exit status 0; 1 where a launch failed; 2 with one line on bad usage; 130 where it was interrupted."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    setup = parser.setup(arguments, argv, points(arguments.warmup, arguments.steps))
    experiment, interrupted = parser.measure(setup, Plan(arguments.repeats, arguments.budget), judge)
    found: OverheadFound = experiment.result
    show(experiment, found, setup.folder, Console())
    return INTERRUPTED if interrupted else 1 if found.failures else 0


def show(experiment: Experiment, found: OverheadFound, folder: Path, console: Console) -> None:
    """Print what was found."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("", "recording", "against", "ms before", "ms after", "ratio", "interval"):
        table.add_column(heading, justify="right" if "ms" in heading or heading == "ratio" else "left")
    for cost in found.costs:
        told = cost.ratio
        interval = NULL if told.low is None or told.high is None else f"{told.low:.3f} to {told.high:.3f}"
        if told.verdict == "cannot_be_told":
            interval += ", cannot be told from 1"
        cells = (cost.what, _NAMES[cost.recorded], _NAMES[cost.against])
        figures = (f"{cost.before:.2f}", f"{cost.after:.2f}", f"{told.estimate:.3f}", interval)
        table.add_row(*(Text(clean(cell)) for cell in (*cells, *figures)))
    console.print(table)
    for name, why in found.failures.items():
        console.print(Text(clean(f"{_NAMES[name]}: {why}"), style="bold red"))
    console.print(
        Text(
            f"Means of {experiment.steps} steps of each launch after the first {1 + experiment.warmup}; the interval "
            "is of the ratio over launches, taken in turn."
        )
    )
    console.print(Text(f"results: {folder}"), soft_wrap=True)
