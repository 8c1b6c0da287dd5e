"""`distprof validate`: whether a change makes the training faster, by measurement."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distprof.cli.experiments import INTERRUPTED, ExperimentParser
from distprof.cli.fail_if import CONDITION_HOLDS, add_fail_if, tell_failed
from distprof.experiment.core import Experiment, Plan
from distprof.experiment.settings import parse_point
from distprof.experiment.validate import BASELINE, CANDIDATE, Measured, Validation, judge, settled
from distprof.report.parts import PARTS
from distprof.report.words import NULL, clean
from distprof.result import NotObserved
from distprof.run.config import ConfigError

_EPILOG = """points:
  words such as 'loader.num_workers=4 ddp.bucket_cap_mb=50' (see --set of `distprof launch`), script=other.py for
  another script with the same arguments, git=REVISION for the script as it was; '' is the training as it is.

examples:
  distprof validate --nproc-per-node 4 --candidate 'loader.num_workers=4' train.py --epochs 1
  distprof validate --nproc-per-node 4 --baseline 'git=main' --candidate '' train.py
"""
_REPEATS = 8
_LABELS = {part.field: part.label for part in PARTS} | {"exposed": "communication, exposed"}
_VERDICTS = {
    "faster": ("The candidate is faster", "bold green"),
    "slower": ("The candidate is slower", "bold red"),
    "cannot_be_told": ("It cannot be told which is faster", "bold yellow"),
}
_TRAINING = {
    "same": "Both come to the same parameters after the same steps.",
    "changed": "The candidate changes the result of the training: after the same steps its parameters are others.",
    "not_repeatable": "The training comes to other parameters at each repeat, so whether the candidate changes its "
    "result cannot be told.",
    "unknown": "Whether the candidate changes the result of the training was not observed.",
}


def build_parser() -> ExperimentParser:
    """The command's options, and torchrun's."""
    parser = ExperimentParser(
        "validate",
        repeats=_REPEATS,
        description="Measure whether a candidate trains faster than the baseline: launches in turn, outside of the "
        "profiler, of a stated number of steps.",
        epilog=_EPILOG,
    )
    parser.ours.add_argument(
        "--baseline", default="", metavar="'K=V ...'", help="What is compared with. Default: the training as it is."
    )
    parser.ours.add_argument("--candidate", required=True, metavar="'K=V ...'", help="What may be better.")
    add_fail_if(parser.ours, Validation, 'verdict == "slower"')
    return parser


def main(argv: list[str]) -> int:
    """Measure. Exit status 0; 1 where a point failed; 2 with one line on bad usage; 3 if a condition holds; 130 where
    it was interrupted, after what is known."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        points = [parse_point(BASELINE, arguments.baseline), parse_point(CANDIDATE, arguments.candidate)]
    except ConfigError as error:
        parser.error(str(error))
    for point in points:
        point.options.append("--no-window")
    setup = parser.setup(arguments, argv, points)
    plan = Plan(arguments.repeats, arguments.budget, partial(settled, planned=arguments.repeats))
    experiment, interrupted = parser.measure(setup, plan, partial(judge, planned=arguments.repeats))
    found: Validation = experiment.result
    show(experiment, found, setup.folder, Console())
    if interrupted:
        return INTERRUPTED
    missing = [] if found.ratio is not None else [NotObserved("ratio", None, found.why)]
    if tell_failed(arguments.fail_if, found, missing):
        return CONDITION_HOLDS
    return 1 if found.baseline.failure or found.candidate.failure else 0


def show(experiment: Experiment, found: Validation, folder: Path, console: Console) -> None:
    """Print the answer, and what it stands on."""

    def line(text: str, style: str = "") -> None:
        console.print(Text(clean(text), style=style))

    verdict, style = _VERDICTS[found.verdict]
    told = found.ratio
    if told is not None and told.low is not None and told.high is not None:
        verdict += (
            f": its time per {found.per} is {told.estimate:.3f} of the baseline's, between {told.low:.3f} and "
            f"{told.high:.3f} ({told.confidence:.1%})"
        )
    line(f"{verdict}.", style)
    line(f"{found.why[:1].upper()}{found.why[1:]}.")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("", "ms per step", "lowest", "highest", "samples/s", "launches"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in ((BASELINE, found.baseline), (CANDIDATE, found.candidate)):
        table.add_row(name, *_cells(row))
    console.print(table)
    for name, row in ((BASELINE, found.baseline), (CANDIDATE, found.candidate)):
        line(f"{name}: {row.point or 'as it is'}")
    if found.parts:
        line("Where the difference is, in ms per step:", "dim")
        parts = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False, header_style="dim")
        for heading in ("", BASELINE, CANDIDATE):
            parts.add_column(heading, justify="right" if heading else "left")
        for part in found.parts:
            parts.add_row(_LABELS.get(part.part, part.part), f"{part.baseline:.2f}", f"{part.candidate:.2f}")
        console.print(parts)
    for note in found.notes:
        line(note, "yellow")
    line(_TRAINING[found.training], "bold yellow" if found.training == "changed" else "")
    line(
        f"Measured: {experiment.steps} steps of each launch after the first {1 + experiment.warmup}, without a window; "
        f"a launch counts by its mean step."
    )
    console.print(Text(f"results: {folder}"), soft_wrap=True)


def _cells(row: Measured) -> list[Text]:
    def figure(value: float | None) -> str:
        return NULL if value is None else f"{value:.2f}"

    edges = (min(row.steps), max(row.steps)) if row.steps else (None, None)
    cells = [figure(row.step), *map(figure, edges), figure(row.samples_per_s), str(len(row.steps))]
    return [Text(cell) for cell in cells]
