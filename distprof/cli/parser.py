"""What the subcommands' argument parsers share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that says what is wrong; the exit status is 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")

    def one_run(self, paths: list[Path]) -> Path:
        """The run directory out of the command line's paths; anything else is an error."""
        if len(paths) > 1:
            self.error("several paths were given, and this version reads one run directory at a time")
        path = paths[0]
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            self.error(f"{path} {what}: give a run directory, the folder that `distprof launch` printed")
        return path


def output_file(text: str) -> Path:
    """The type of an option that names a file to write."""
    path = Path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, give the name of a file")
    return path
