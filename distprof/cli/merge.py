"""`distprof merge`: the timeline of all ranks."""

from __future__ import annotations

from pathlib import Path

from distprof.cli.parser import Parser, load_recordings, output_file
from distprof.pipeline import build
from distprof.report.timeline import write_timeline
from distprof.run.manifest import RunDirectoryError

_ENDINGS = (".json.gz", ".json")


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof merge",
        description="Write the timeline of all ranks on one clock, to be opened at https://ui.perfetto.dev.",
    )
    parser.add_recordings()
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        required=True,
        metavar="FILE",
        help=f"Where to; it ends with {' or '.join(_ENDINGS)}.",
    )
    parser.add_argument("--force", action="store_true", help="Overwrite FILE.")
    return parser


def main(argv: list[str]) -> int:
    """Write the timeline. Exit status 0, or 2 with one line if the run cannot be read or the file not be written."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    output: Path = arguments.output
    if not output.name.endswith(_ENDINGS):
        parser.error(f"{output} must end with {' or '.join(_ENDINGS)}")
    if output.exists() and not arguments.force:
        parser.error(f"{output} exists: give another name, or --force to overwrite it")
    try:
        run = load_recordings(arguments)
        write_timeline(run, build(run), output)
    except RunDirectoryError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename} cannot be read or written ({error.strerror})")
    print(output)
    return 0
