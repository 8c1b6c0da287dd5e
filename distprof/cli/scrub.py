"""`distprof scrub`: a copy of a run without what is private in it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from distprof.cli.parser import Parser
from distprof.cli.progress import ReadingBar
from distprof.report import words
from distprof.run.manifest import RunDirectoryError
from distprof.scrub.copy import Scrubbed, scrub
from distprof.scrub.names import KINDS

FOUND = 3  # what `--check` ends with where something looks private
_SHOWN = 20  # values of a kind

_EPILOG = """examples:
  distprof scrub distprof-runs/20260131-120000-train -o for-others
  distprof scrub RUN -o for-others --zone 'customer' --zone '^exp-'
  distprof scrub traces/*.json.gz -o for-others    # of one job, by whatever profiler
  distprof scrub RUN --check                       # what looks private; nothing is written
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof scrub",
        description="Write a copy of a run directory, or of traces, in which names of hosts and users, paths, "
        "arguments, values of environment variables, e-mail addresses, secrets and free text are replaced, the same "
        "value by the same name. It analyses to the same figures. Reports and digests are left out: make them from "
        "the copy. What is found is what looks private, or is known from the run itself: look at the copy before it "
        "goes to others.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="RUN|TRACES",
        help="A run directory: what `distprof launch` printed. Or traces that anybody recorded: files, folders and "
        "globs.",
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="The folder of the copy; it must not exist, or be empty. It appears when all of it is written.",
    )
    target.add_argument(
        "--check",
        action="store_true",
        help=f"List what looks private, and write nothing. The exit status is {FOUND} if there is something, else 0.",
    )
    parser.add_argument(
        "--zone",
        action="append",
        type=_pattern,
        default=[],
        metavar="REGEX",
        help="Zones and annotations whose names this matches, anywhere, get other names. Can be repeated.",
    )
    return parser


def main(argv: list[str]) -> int:
    """Copy, or check. Exit status 0; 2 with one line if it cannot be done; 3 if a check found something."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        with ReadingBar("scrubbing") as progress:
            done = scrub(arguments.paths, arguments.output, arguments.zone, progress)
    except RunDirectoryError as error:
        parser.error(str(error))
    except OSError as error:
        parser.os_error(error)
    lines = _found(done) if arguments.check else _replaced(done, arguments.output)
    print("\n".join(lines))
    return FOUND if arguments.check and done.kinds else 0


def _replaced(done: Scrubbed, output: Path) -> Iterable[str]:
    yield f"{output}: {done.files} files"
    for kind, what in KINDS.items():
        if kind in done.kinds:
            found = done.kinds[kind]
            yield f"  {what}: {len(found.values)} replaced, in {found.uses} places"
    yield from _left_out(done)


def _found(done: Scrubbed) -> Iterable[str]:
    if not done.kinds:
        yield f"nothing looks private in {done.files} files"
    for kind, what in KINDS.items():
        if kind in done.kinds:
            found = done.kinds[kind]
            yield f"{what}: {len(found.values)}, in {found.uses} places"
            for value, place in list(found.values.items())[:_SHOWN]:
                yield f"  {words.clean(value)}  ({words.clean(place)})"
            if len(found.values) > _SHOWN:
                yield f"  and {len(found.values) - _SHOWN} more"
    yield from _left_out(done)


def _left_out(done: Scrubbed) -> Iterable[str]:
    for file, why in done.left_out:
        yield f"  left out: {words.clean(file)}: {words.clean(why)}"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression ({error})") from error
