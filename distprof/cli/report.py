"""`distprof report`: show a recorded run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from distprof.cli.fail_if import CONDITION_HOLDS, add_fail_if, tell_failed
from distprof.cli.parser import Parser, load_recordings, output_file, step_range
from distprof.report.make import kept_of, show_report
from distprof.report.terminal import render, render_verdict
from distprof.result import Result, to_json
from distprof.run.files import write_where_told
from distprof.run.manifest import RunDirectoryError

_EPILOG = """examples:
  distprof report distprof-runs/20260131-120000-train
  distprof report RUN --steps 100:200 --quiet
  distprof report RUN --json - | jq .stragglers
  distprof report traces/ --rank traces/a.json=0        # of one job, by whatever profiler
  distprof report RUN --fail-if 'communication.exposed / steps.steady.median > 0.2'
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof report",
        description="Show who holds the others up in a recorded run, why, and how much. Without options the report is "
        "also left in the run directory as report.html, report.json and timeline.json.gz; beside traces that others "
        "recorded nothing is left.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_recordings()
    parser.add_argument(
        "--json",
        type=output_file,
        metavar="FILE|-",
        help="Write the report as data to FILE; -: to standard output and nothing else.",
    )
    parser.add_argument("--html", type=output_file, metavar="FILE", help="Write the report as a page to FILE.")
    parser.add_argument(
        "--steps",
        type=step_range,
        default=(None, None),
        metavar="A:B",
        help="Judge only the steps from A to before B; either may be left out. What lies in the run directory is left "
        "as it is. Default: all.",
    )
    parser.add_argument("--quiet", action="store_true", help="Print the verdict and nothing else.")
    add_fail_if(parser, Result, "communication.exposed / steps.steady.median > 0.2")
    return parser


def main(argv: list[str]) -> int:
    """Show a run. Exit status 0; 2 with one line if it cannot be read or written; 3 if a condition holds."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        render_chosen = render_verdict if arguments.quiet else render
        if arguments.json is None and arguments.html is None and arguments.steps == (None, None):
            result = show_report(arguments.paths, partial(load_recordings, arguments), quiet=arguments.quiet)
        else:
            result = _chosen(arguments)
            _write_chosen(result, arguments.json, arguments.html, render_chosen)
    except RunDirectoryError as error:
        parser.error(str(error))
    except OSError as error:
        parser.os_error(error)
    return CONDITION_HOLDS if tell_failed(arguments.fail_if, result, result.not_observed) else 0


def _chosen(arguments: argparse.Namespace) -> Result:
    """The report on the steps that were asked for."""
    kept = kept_of(arguments.paths) if arguments.steps == (None, None) else None
    if kept is not None:
        return kept
    from distprof.pipeline import build  # with polars, which a report that was kept does not need

    return build(load_recordings(arguments), arguments.steps)


def _write_chosen(
    result: Result, json: Path | None, html: Path | None, render_chosen: Callable[[Result, Console], None]
) -> None:
    if html is not None:
        from distprof.report.page import page  # with jinja2, which nothing else needs

        write_where_told(html, page(result).encode())
    if json == Path("-"):
        sys.stdout.buffer.write(to_json(result) + b"\n")
        return
    if json is not None:
        write_where_told(json, to_json(result))
    render_chosen(result, Console())
