"""The command `distprof`: the first word names the subcommand, the rest is the subcommand's own."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
from contextlib import suppress
from typing import Protocol, cast

from distprof._version import __version__
from distprof.cli.memory import with_memory_told
from distprof.run.scheduled import hold_announcements, is_scheduled

# Each is the module distprof.cli.<name>, imported when it is called and not before: `--help` is instant.
COMMANDS: dict[str, str] = {
    "launch": "run a training as torchrun would, record every rank, and report",
    "submit": "do the same as a job of SLURM, on several nodes",
    "env": "print the lines that arm what any other launcher starts",
    "report": "show who holds the others up in a recorded run, why, and how much",
    "compare": "show what is different between two recorded runs",
    "validate": "measure whether a change makes a training faster, outside of the profiler",
    "sweep": "try settings on a training, and say which are better and why",
    "overhead": "measure what distprof itself costs a training",
    "merge": "write the timeline of all ranks on one clock, for Perfetto",
    "view": "open a run's timeline in Perfetto",
    "scrub": "write a copy of a run without names, paths, arguments and secrets",
    "doctor": "say what can be observed on this machine, and why the rest cannot",
    "completion": "print what bash, zsh or tcsh completes commands and options by",
}

_READING = ("report", "compare", "merge", "view", "scrub")  # what takes memory by what it is given
_INTERRUPTED = 130
_NOBODY_READS = 141  # as shells tell of a command that SIGPIPE ends
_NOT_PRINTED = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)
_NO_MORE = {  # of what the system gives
    errno.EMFILE: "let it open more files (`ulimit -n`)",
    errno.ENFILE: "let the system open more files",
    errno.EAGAIN: "let it start more processes (`ulimit -u`)",
}
_FEW_COLLECTIONS = 200_000  # objects that are made between two of them; Python's own figure is 700


class _Command(Protocol):
    def main(self, argv: list[str]) -> int: ...


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; its exit status is returned.

    0: fine; 1: what was launched failed; 2: bad usage or unusable input; 3: a `--fail-if` condition holds; 130:
    interrupted; 141: nobody reads what is printed any more. `launch` ends as torchrun would, whatever that is.

    Args:
        argv: the words after `distprof`; None: those of this process.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["launch"]:
        return _run(words)  # what it prints is the script's, and it ends as torchrun would
    try:
        status = _run(words)
        sys.stdout.flush()
    except OSError as error:
        if error.errno in _NO_MORE:
            print(f"{_prog(words)}: error: {error.strerror}: {_NO_MORE[error.errno]}", file=sys.stderr)
            return 2
        if error.filename is not None or error.errno not in _NOT_PRINTED:
            raise
        return _not_printed(words, error)
    except SystemExit:
        try:
            sys.stdout.flush()
        except OSError as error:
            raise SystemExit(_not_printed(words, error)) from error
        raise
    return status


def _prog(words: list[str]) -> str:
    return " ".join(["distprof", *(word for word in words[:1] if word in COMMANDS)])


def _not_printed(words: list[str], error: OSError) -> int:
    """Tell that standard output cannot be written, but for a pipe that nobody reads any more."""
    with suppress(OSError, ValueError):  # else Python tries again to print it at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return _NOBODY_READS
    print(f"{_prog(words)}: error: standard output cannot be written ({error.strerror})", file=sys.stderr)
    return 2


def _run(words: list[str]) -> int:
    command = words[0] if words else "--help"
    if command in ("-h", "--help"):
        print(_usage())
        return 0 if words else 2
    if command == "--version":
        print(f"distprof {__version__}")
        return 0
    if command not in COMMANDS:
        print(f"distprof: error: {_unknown(command)}", file=sys.stderr)
        return 2
    if command == "launch" and is_scheduled(os.environ):
        hold_announcements()  # to import torch takes seconds
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a report must not end at a dash that the locale does not know
    # What imports make stays: to look for garbage in it again and again would take a seventh of a small report's time.
    gc.set_threshold(_FEW_COLLECTIONS)

    def run() -> int:
        try:
            module = cast(_Command, importlib.import_module(f"distprof.cli.{command}"))
            return module.main(words[1:])
        except KeyboardInterrupt:
            if command == "launch":
                raise
            return _INTERRUPTED

    return with_memory_told(f"distprof {command}", run) if command in _READING else run()


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: distprof COMMAND ...",
            "",
            "Find out which rank holds a distributed PyTorch training up, doing what, and what it costs.",
            "",
            "commands:",
            *lines,
            "",
            "`distprof COMMAND --help` explains a command; `distprof --version` tells the version.",
        ]
    )


def _unknown(command: str) -> str:
    import difflib

    close = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}."
    return f"there is no command {command!r}: {hint}"
