"""`distprof compare`: what is different between two recorded runs."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distprof.cli.fail_if import CONDITION_HOLDS, add_fail_if, tell_failed
from distprof.cli.parser import Parser, output_file
from distprof.experiment.compare import Change, Comparison, compare, incomparable
from distprof.pipeline import build
from distprof.report.words import NULL, clean, ms
from distprof.result import Result, from_json
from distprof.run.files import open_regular, write_where_told
from distprof.run.manifest import RunDirectoryError
from distprof.trace.load import load

# A report has some kB for each rank, of which jobs have tens of thousands at most.
_MOST_REPORT = 256 << 20


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof compare",
        description="Show what is different between two recorded runs, part by part of a step. It refuses runs that "
        "are not of the same number of ranks, batches and device.",
    )
    parser.add_argument(
        "runs", nargs=2, type=Path, metavar="RUN", help="A run directory, a report.json, or a folder of traces."
    )
    parser.add_argument("--anyway", action="store_true", help="Compare them although they cannot be.")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE|-", help="Write the comparison as data; -: to standard output."
    )
    add_fail_if(parser, Comparison, "after.steps.steady.median > 1.05 * before.steps.steady.median")
    return parser


def main(argv: list[str]) -> int:
    """Compare. Exit status 0; 2 with one line if they cannot be read or compared; 3 if a condition holds."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        before, after = (_result(path) for path in arguments.runs)
        reasons = incomparable(before, after)
        if reasons and not arguments.anyway:
            parser.error(
                f"these runs are not comparable: {'; '.join(map(clean, reasons))}; --anyway does it all the same"
            )
        found = compare(before, after)
        data = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
        if arguments.json == Path("-"):
            sys.stdout.buffer.write(data)
        elif arguments.json is not None:
            write_where_told(arguments.json, data)
    except RunDirectoryError as error:
        parser.error(str(error))
    except OSError as error:
        parser.os_error(error)
    if arguments.json != Path("-"):
        show(found, Console())
    return CONDITION_HOLDS if tell_failed(arguments.fail_if, found, found.not_observed) else 0


def _result(path: Path) -> Result:
    if path.suffix != ".json" or path.name != "report.json":
        return build(load(path))
    with open_regular(path) as file:
        data = file.read(_MOST_REPORT + 1)
    if len(data) > _MOST_REPORT:
        raise RunDirectoryError(f"{path} is longer than {_MOST_REPORT >> 20} MiB: no report is")
    try:
        return from_json(data)
    except msgspec.DecodeError as error:  # ValidationError is one
        raise RunDirectoryError(f"{path} is no report of this version ({error})") from error


def show(found: Comparison, console: Console) -> None:
    """Print a comparison."""
    console.print(Text(clean(f"before: {found.before.run.name}")))
    console.print(Text(clean(f"after:  {found.after.run.name}")))
    for text in found.conditions:
        console.print(Text(clean(f"different: {text}"), style="yellow"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("ms per step", "before", "after", "change", "range before", "range after"):
        table.add_column(heading, justify="left" if heading == "ms per step" else "right")
    for change in found.changes:
        label = f"{change.label} ({change.basis})" if change.basis else change.label
        cells = (label, ms(change.before), ms(change.after), _percent(change), *_ranges(change))
        table.add_row(*(Text(clean(cell), style="bold" if change.apart else "") for cell in cells))
    console.print(table)
    console.print(
        Text(
            "Ranges: of the step its 10th to 90th percentile over steps, of its parts the lowest to the highest rank; "
            "bold: they have nothing in common. One run of each says little of the next: `distprof validate` repeats.",
            style="dim",
        )
    )


def _percent(change: Change) -> str:
    return NULL if change.ratio is None else f"{100 * (change.ratio - 1):+.1f}%"


def _ranges(change: Change) -> tuple[str, str]:
    def shown(low: float | None, high: float | None) -> str:
        return NULL if low is None or high is None else f"{ms(low)} to {ms(high)}"

    return shown(change.before_low, change.before_high), shown(change.after_low, change.after_high)
