"""`distprof report`: show a recorded run."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from distprof.cli.parser import Parser, load_recordings, output_file
from distprof.pipeline import build
from distprof.report.make import show_report
from distprof.report.page import write_page
from distprof.report.terminal import render
from distprof.result import to_json
from distprof.run.files import write_atomic
from distprof.run.manifest import RunDirectoryError
from distprof.trace.loaded import Run


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof report",
        description="Show who holds the others up in a recorded run, why, and how much. Without options the report is "
        "also left in the run directory as report.html, report.json and timeline.json.gz; beside traces that others "
        "recorded nothing is left.",
    )
    parser.add_recordings()
    parser.add_argument(
        "--json",
        type=output_file,
        metavar="FILE|-",
        help="Write the report as data to FILE; -: to standard output and nothing else.",
    )
    parser.add_argument("--html", type=output_file, metavar="FILE", help="Write the report as a page to FILE.")
    return parser


def main(argv: list[str]) -> int:
    """Show a run. Exit status 0, or 2 with one line if it cannot be read or written."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        run = load_recordings(arguments)
        if arguments.json is None and arguments.html is None:
            show_report(run)
        else:
            _write_chosen(run, arguments.json, arguments.html)
    except RunDirectoryError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename} cannot be read or written ({error.strerror})")
    return 0


def _write_chosen(run: Run, json: Path | None, html: Path | None) -> None:
    result = build(run)
    if html is not None:
        write_page(result, html)
    if json == Path("-"):
        sys.stdout.buffer.write(to_json(result) + b"\n")
        return
    if json is not None:
        write_atomic(json, to_json(result))
    render(result, Console())
