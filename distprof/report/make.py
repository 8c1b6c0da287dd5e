"""From a run directory to everything that can be looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from distprof.pipeline import build
from distprof.report.terminal import render, render_verdict
from distprof.report.words import clean
from distprof.result import Result, to_json
from distprof.run.directory import RunDirectory
from distprof.run.files import write_atomic
from distprof.trace.load import Run, load


def make_report(path: Path, console: Console | None = None) -> None:
    """Load the run directory at `path`, print its report, and leave report, page and timeline in it.

    A directory that cannot be written is told and is no error.

    Args:
        console: where to print; None: standard output.

    Raises:
        RunDirectoryError: `path` is no run directory, or nothing in it can be analysed.
    """
    show_report(load(path), console)


def show_report(run: Run, console: Console | None = None, *, quiet: bool = False) -> Result:
    """Print a run's report, and leave report, page and timeline in its directory; beside traces that others recorded
    nothing is left. The report is returned.

    A directory that cannot be written is told and is no error.

    Args:
        console: where to print; None: standard output.
        quiet: print the verdict and nothing else.
    """
    console = console or Console()
    result = build(run)
    # Written before anything is printed: whoever reads the terminal may go away in the middle of it.
    lines = [] if run.manifest is None else ["", *_write_faces(run, result, run.directory)]
    if quiet:
        render_verdict(result, console)
        return result
    render(result, console)
    for line in lines:
        console.print(Text(clean(line)), soft_wrap=True)
    return result


def _write_faces(run: Run, result: Result, directory: RunDirectory) -> list[str]:
    """Write the report's files into the run directory; returns a line about each."""
    # A report on others' traces needs neither.
    from distprof.report.page import write_page
    from distprof.report.timeline import write_timeline

    faces: list[tuple[str, Path, Callable[[Path], None]]] = [
        ("report", directory.report_html, lambda path: write_page(result, path)),
        ("data", directory.report_json, lambda path: write_atomic(path, to_json(result))),
        ("timeline", directory.timeline, lambda path: write_timeline(run, result, path)),
    ]
    lines = []
    for name, path, write in faces:
        try:
            write(path)
            lines.append(f"{name + ':':9} {path}")
        except OSError as error:
            lines.append(f"{name + ':':9} not written, {path} cannot be ({error.strerror})")
    return lines
