"""`distprof view`: the timeline in Perfetto."""

from __future__ import annotations

import argparse
import errno
import webbrowser
from pathlib import Path

from distprof.cli.parser import Parser
from distprof.report.serve import PORT, TimelineServer
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError

_EPILOG = """examples:
  distprof view distprof-runs/20260131-120000-train
  distprof view all.pftrace --no-browser
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof view",
        description="Open a run's timeline at https://ui.perfetto.dev. The page fetches it from this machine, once, "
        "and keeps it in the browser: nothing is uploaded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="RUN|FILE",
        help="A run directory, whose timeline is made if there is none yet; or a file that `distprof merge` wrote.",
    )
    parser.add_argument("--no-browser", action="store_true", help="Print the page's address and open no browser.")
    return parser


def main(argv: list[str]) -> int:
    """Serve the timeline until it was fetched. Exit status 0, or 2 with one line if it cannot be made or served."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        timeline = _timeline(arguments.path)
        with TimelineServer(timeline) as server:
            print(f"{timeline} is shown at\n{server.address}", flush=True)
            if not arguments.no_browser and not webbrowser.open_new_tab(server.address):
                print("no browser could be opened: open the address yourself", flush=True)
            server.serve_until_fetched()
    except RunDirectoryError as error:
        parser.error(str(error))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            parser.error(
                f"port {PORT} of this machine is in use, and Perfetto's page fetches from no other: end what uses it "
                f"(`ss -ltnp 'sport = {PORT}'` names it), or open the file at the page yourself"
            )
        parser.error(f"{error.filename} cannot be read or written ({error.strerror})")
    return 0


def _timeline(path: Path) -> Path:
    """The file to show; a run directory's is made if it is missing.

    Raises:
        RunDirectoryError: there is nothing to show.
        OSError: it cannot be read or written.
    """
    if path.is_file():
        return path
    directory = RunDirectory(path)
    if not directory.timeline.is_file():
        from distprof.pipeline import build
        from distprof.report.timeline import write_timeline
        from distprof.trace.load import load

        if not directory.manifest.is_file():
            raise RunDirectoryError(
                f"{path} is no run directory: give one, or a file that `distprof merge TRACES -o FILE` wrote"
            )
        run = load(path)
        write_timeline(run, build(run), directory.timeline)
    return directory.timeline
