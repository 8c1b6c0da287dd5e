"""From a run directory to everything that can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from distprof.report.kept import keep_report, kept_report, state_of
from distprof.report.terminal import render, render_verdict
from distprof.report.words import clean
from distprof.result import Result, to_json
from distprof.run.directory import RunDirectory
from distprof.run.files import write_atomic

if TYPE_CHECKING:
    from distprof.trace.loaded import Run


def make_report(path: Path, console: Console | None = None) -> None:
    """Load the run directory at `path`, print its report, and leave report, page and timeline in it.

    A directory that cannot be written is told and is no error.

    Args:
        console: where to print; None: standard output.

    Raises:
        RunDirectoryError: `path` is no run directory, or nothing in it can be analysed.
    """

    def read() -> Run:
        from distprof.trace.load import load

        return load(path)

    show_report([path], read, console)


def show_report(
    paths: Sequence[Path], read: Callable[[], Run], console: Console | None = None, *, quiet: bool = False
) -> Result:
    """Print a run's report, and leave report, page and timeline in its directory; beside traces that others recorded
    nothing is left. The report is returned.

    A directory that cannot be written is told and is no error.

    Args:
        paths: what is reported.
        read: reads it; it is not called where the report that lies in the directory still holds.
        console: where to print; None: standard output.
        quiet: print the verdict and nothing else.
    """
    console = console or Console()
    result = kept_of(paths)
    if result is not None:
        lines = ["", *(_line(name, path) for name, path in _faces(RunDirectory(paths[0])).items())]
    else:
        # Written before anything is printed: whoever reads the terminal may go away in the middle of it.
        result, lines = _make(paths, read)
    if quiet:
        render_verdict(result, console)
        return result
    render(result, console)
    for line in lines:
        console.print(Text(clean(line)), soft_wrap=True)
    return result


def kept_of(paths: Sequence[Path]) -> Result | None:
    """The report of a run directory that lies in it and still holds."""
    directory = _run_directory(paths)
    return None if directory is None else kept_report(directory)


def _run_directory(paths: Sequence[Path]) -> RunDirectory | None:
    """The one run directory that was given, where all that its report is made of lies in it."""
    directory = RunDirectory(paths[0])
    return directory if len(paths) == 1 and directory.manifest.is_file() else None


def _make(paths: Sequence[Path], read: Callable[[], Run]) -> tuple[Result, list[str]]:
    """Make the report, and lines about the files that it left."""
    from distprof.pipeline import build

    directory = _run_directory(paths)
    state = None if directory is None else state_of(directory)
    run = read()
    result = build(run)
    if run.manifest is None:
        return result, []
    failed = _write_faces(run, result, run.directory)
    lines = [_line(name, path, failed.get(name)) for name, path in _faces(run.directory).items()]
    if directory is not None and not failed and not run.beside:
        keep_report(directory, state)
    return result, ["", *lines]


def _faces(directory: RunDirectory) -> dict[str, Path]:
    return {"report": directory.report_html, "data": directory.report_json, "timeline": directory.timeline}


def _write_faces(run: Run, result: Result, directory: RunDirectory) -> dict[str, OSError]:
    """Write the report's files into the run directory; returns which could not be written, and why."""
    # A report on others' traces needs neither.
    from distprof.report.page import write_page
    from distprof.report.timeline import write_timeline

    writers: dict[str, Callable[[Path], None]] = {
        "report": lambda path: write_page(result, path),
        "data": lambda path: write_atomic(path, to_json(result)),
        "timeline": lambda path: write_timeline(run, result, path),
    }
    failed = {}
    for name, path in _faces(directory).items():
        try:
            writers[name](path)
        except OSError as error:
            failed[name] = error
    return failed


def _line(name: str, path: Path, error: OSError | None = None) -> str:
    told = path if error is None else f"not written, {path} cannot be ({error.strerror})"
    return f"{name + ':':9} {told}"
