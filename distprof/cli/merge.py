"""`distprof merge`: the timeline of all ranks."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from distprof.cli.parser import Parser, load_recordings, output_file, step_range
from distprof.cli.progress import ReadingBar
from distprof.pipeline import build
from distprof.report import words
from distprof.report.selection import PARTS, NothingSelectedError, Selection
from distprof.report.timeline import ENDINGS, write_timeline
from distprof.run.manifest import RunDirectoryError

_EPILOG = """examples:
  distprof merge distprof-runs/20260131-120000-train -o all.json.gz
  distprof merge RUN -o some.pftrace --ranks 0,3-5 --steps 10:20 --only zones,collectives
  distprof merge traces/*.json.gz -o all.json.gz        # of one job, by whatever profiler
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof merge",
        description="Write the timeline of all ranks on one clock, to be opened at https://ui.perfetto.dev or with "
        "`distprof view`. A rank has lanes of its own in each attempt of the run.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_recordings()
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        required=True,
        metavar="FILE",
        help=f"Where to; it ends with {', '.join(ENDINGS[:-1])} (a Chrome trace) or {ENDINGS[-1]} (Perfetto's own "
        "format).",
    )
    parser.add_argument("--force", action="store_true", help="Overwrite FILE.")
    add_selection(parser)
    return parser


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add what a timeline may be limited to."""
    parser.add_argument("--ranks", type=_ranks, metavar="R,R-R", help="Only these ranks, such as 0,3-5. Default: all.")
    parser.add_argument(
        "--steps",
        type=step_range,
        default=(None, None),
        metavar="A:B",
        help="Only what touches the steps from A to before B, in the attempt that is reported; either may be left out. "
        "Default: all.",
    )
    parser.add_argument(
        "--only",
        type=_parts,
        default=frozenset(PARTS),
        metavar="PART,PART",
        help=f"Only these of {', '.join(PARTS)}. Default: all.",
    )


def selected(arguments: argparse.Namespace) -> Selection:
    """What `add_selection`'s options say."""
    return Selection(ranks=arguments.ranks, steps=arguments.steps, parts=arguments.only)


def main(argv: list[str]) -> int:
    """Write the timeline. Exit status 0, or 2 with one line if the run cannot be read or the file not be written."""
    begin = time.perf_counter()
    parser = build_parser()
    arguments = parser.parse_args(argv)
    output: Path = arguments.output
    if not output.name.endswith(ENDINGS):
        parser.error(f"{output} must end with {' or '.join(ENDINGS)}")
    if output.exists() and not arguments.force:
        parser.error(f"{output} exists: give another name, or --force to overwrite it")
    try:
        run = load_recordings(arguments)
        result = build(run)
        with ReadingBar("writing") as progress:
            write_timeline(run, result, output, selected(arguments), progress)
    except (RunDirectoryError, NothingSelectedError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.os_error(error)
    print(f"{output}  {words.size(output.stat().st_size)}  {time.perf_counter() - begin:.1f} s")
    return 0


def _ranks(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise argparse.ArgumentTypeError(f"{text!r} names no ranks, as 0,3-5 does")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def _parts(text: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in text.split(","))
    unknown = sorted(parts - set(PARTS))
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}: the parts are {', '.join(PARTS)}")
    return parts
