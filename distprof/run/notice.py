"""A notice from the launcher to the ranks of its host: the scheduler will end the job soon.

A folder on the host's own disk, named in the environment: `told.json` in it is the notice, and each rank that has put
on disk what it had answers with a file. A signal would not do: a rank that waits in a collective cannot handle one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NOTICE_VARIABLE = "DISTPROF_NOTICE"
_TOLD = "told.json"


class NoticeBoard:
    """The launcher's side."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="distprof-notice-"))

    def tell(self, name: str) -> None:
        """Tell that the scheduler sent the signal of that name; what was told first stays."""
        path = self.folder / _TOLD
        with suppress(OSError):
            temporary = path.with_suffix(".new")
            temporary.write_text(json.dumps({"signal": name, "unix_ns": time.time_ns()}))
            if not path.exists():
                temporary.rename(path)

    def answers(self) -> int:
        """How many ranks have answered."""
        return len(list(self.folder.glob("answer-*")))

    def remove(self) -> None:
        """Take it down."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Notice:
    """A rank's side."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        folder = environment.get(NOTICE_VARIABLE)
        self._folder = Path(folder) if folder else None

    @property
    def expected(self) -> bool:
        """Whether there may be one."""
        return self._folder is not None

    def read(self) -> dict[str, Any] | None:
        """The notice: `signal` and `unix_ns`; None: none yet."""
        if self._folder is None:
            return None
        try:
            value = json.loads((self._folder / _TOLD).read_text())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def answer(self) -> None:
        """Tell that what this rank has is on disk."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / f"answer-{os.getpid()}").touch()
