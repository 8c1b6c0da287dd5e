"""What the subcommands' argument parsers share."""

from __future__ import annotations

import argparse
import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from distprof.trace.loaded import Run

_NO_ROOM = "free space there, or give another place"
_REFUSED = "give another place, or change its permissions"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _REFUSED,
    errno.EPERM: _REFUSED,
    errno.EROFS: "give another place",
    errno.ENOENT: "check the path, or give another place",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that says what is wrong; the exit status is 2."""

    def error(self, message: str) -> NoReturn:
        from distprof.report.words import clean  # files are named by strangers, too

        self.exit(2, f"{self.prog}: error: {clean(' '.join(message.split()))}\n")

    def os_error(self, error: OSError) -> NoReturn:
        """End with one line that says which file cannot be read or written, why, and what helps.

        Raises:
            OSError: it names no file; `main` says what it means.
        """
        if error.filename is None:
            raise error
        remedy = _REMEDIES.get(error.errno or 0)
        told = f"{error.filename} cannot be read or written ({error.strerror})"
        self.error(told if remedy is None else f"{told}: {remedy}")

    def add_recordings(self) -> None:
        """Add what `load` reads: paths, and what the user knows of traces that others recorded."""
        self.add_argument(
            "paths",
            nargs="+",
            type=Path,
            metavar="RUN|TRACES",
            help="A run directory: what `distprof launch` printed; where hosts share no disk, the directories of all "
            "of them. Or traces of one job that anybody recorded: files, folders and globs.",
        )
        self.add_argument(
            "--rank",
            action="append",
            type=_rank_of_file,
            default=[],
            metavar="FILE=N",
            help="FILE is the trace of rank N; for traces that do not tell it themselves. Can be repeated.",
        )
        self.add_argument(
            "--collective",
            action="append",
            type=_kernels,
            default=[],
            metavar="REGEX[=KIND]",
            help="Kernels with such names communicate, beside those that are known; KIND is all_reduce, all_gather "
            "and so on. For traces that others recorded. Can be repeated.",
        )


def _rank_of_file(text: str) -> tuple[str, int]:
    file, _, rank = text.rpartition("=")
    if not file or not rank.isascii() or not rank.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE=N, such as trace.json=3")
    return file, int(rank)


def _kernels(text: str) -> tuple[str, str | None]:
    pattern, _, kind = text.rpartition("=")
    if not pattern or not re.fullmatch(r"[a-z_]+", kind):
        pattern, kind = text, ""
    try:
        re.compile(pattern)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{pattern!r} is no regular expression ({error})") from error
    return pattern, kind or None


def load_recordings(arguments: argparse.Namespace) -> Run:
    """Read what `Parser.add_recordings` was given.

    Raises:
        RunDirectoryError: nothing can be analysed; the message says what to do.
    """
    from distprof.cli.progress import ReadingBar
    from distprof.trace.load import load

    with ReadingBar() as progress:
        return load(
            *arguments.paths,
            ranks=dict(arguments.rank),
            collectives=arguments.collective,
            workers=len(os.sched_getaffinity(0)),
            progress=progress,
        )


def step_range(text: str) -> tuple[int | None, int | None]:
    """The type of an option that names steps: A:B, from A to before B."""
    match = re.fullmatch(r"([0-9]{0,18}):([0-9]{0,18})", text)
    first, end = (int(group) if group else None for group in (match[1], match[2])) if match else (0, 0)
    if match is None or (first is not None and end is not None and first >= end):
        raise argparse.ArgumentTypeError(f"{text!r} names no steps, as 10:20, 10: and :20 do")
    return first, end


def output_file(text: str) -> Path:
    """The type of an option that names a file to write."""
    path = Path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, give the name of a file")
    return path
