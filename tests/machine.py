"""What tests do to the machine that a training runs on: small disks, and clocks that are wrong."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import skip_but_in_ci


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A file system of that size at `folder`, which is made."""
    if os.geteuid() != 0:
        skip_but_in_ci("mounting a small file system needs root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def libfaketime() -> str:
    """The library that, preloaded, gives a process another clock."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        skip_but_in_ci("another clock needs libfaketime (Debian: faketime)")
    return str(libraries[0])
