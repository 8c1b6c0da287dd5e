"""Commands of a scheduler that are not there."""

from __future__ import annotations

from pathlib import Path


def command(folder: Path, name: str, script: str) -> None:
    """Make a command that is this shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
