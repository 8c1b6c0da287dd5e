"""`distprof view`: the timeline in Perfetto."""

from __future__ import annotations

import argparse
import errno
import tempfile
import webbrowser
from pathlib import Path

from distprof.cli.parser import Parser, load_recordings
from distprof.report.serve import PORT, TimelineServer
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError

_EPILOG = """examples:
  distprof view distprof-runs/20260131-120000-train
  distprof view traces/                                 # of one job, by whatever profiler
  distprof view all.pftrace --no-browser
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof view",
        description="Open a timeline at https://ui.perfetto.dev: a run's, which is made if there is none yet; that of "
        "traces, made for the page alone; or a single file as it is, such as `distprof merge` wrote. The page fetches "
        "it from this machine, once, and keeps it in the browser: nothing is uploaded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_recordings()
    parser.add_argument("--no-browser", action="store_true", help="Print the page's address and open no browser.")
    return parser


def main(argv: list[str]) -> int:
    """Serve the timeline until it was fetched. Exit status 0, or 2 with one line if it cannot be made or served."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="distprof-") as scratch:
            _show(_timeline(arguments, Path(scratch)), browser=not arguments.no_browser)
    except RunDirectoryError as error:
        parser.error(str(error))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            parser.error(
                f"port {PORT} of this machine is in use, and Perfetto's page fetches from no other: end what uses it "
                f"(`ss -ltnp 'sport = {PORT}'` names it), or open the file at the page yourself"
            )
        parser.os_error(error)
    return 0


def _show(timeline: Path, *, browser: bool) -> None:
    """Serve the file until it was fetched.

    Raises:
        OSError: it cannot be served.
    """
    with TimelineServer(timeline) as server:
        print(f"{timeline} is shown at\n{server.address}", flush=True)
        if browser and not webbrowser.open_new_tab(server.address):
            print("no browser could be opened: open the address yourself", flush=True)
        server.serve_until_fetched()


def _timeline(arguments: argparse.Namespace, scratch: Path) -> Path:
    """The file to show. A run directory's is made if it is missing, that of traces is made in the folder `scratch`.

    Raises:
        RunDirectoryError: there is nothing to show.
        OSError: it cannot be read or written.
    """
    first: Path = arguments.paths[0]
    alone = len(arguments.paths) == 1
    if alone and first.is_file():
        return first
    directory = RunDirectory(first)
    if alone and directory.timeline.is_file():
        return directory.timeline
    from distprof.pipeline import build
    from distprof.report.timeline import write_timeline

    a_run = alone and directory.manifest.is_file()
    timeline = directory.timeline if a_run else scratch / directory.timeline.name
    try:
        run = load_recordings(arguments)
    except RunDirectoryError as error:
        if a_run:
            raise
        raise RunDirectoryError(f"{first} is no run directory, and there are no traces to show: {error}") from error
    write_timeline(run, build(run), timeline)
    return timeline
