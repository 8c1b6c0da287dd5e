"""Launches that tests do something to while they run, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "LAUNCHED_BY_TEST"
WITHIN_S = 90


class Job:
    """A launcher under way, and all that descends from it: every process inherits a mark in its environment."""

    def __init__(self, *words: str, env: dict[str, str] | None = None) -> None:
        """Start `python -m` with these words."""
        self._mark = uuid.uuid4().hex
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {}), MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a signal meant for one of them must not reach the test
        )
        self.output = ""

    def wait_until(self, text: str, times: int) -> None:
        """Wait until the output holds `text` so many times."""
        assert self.launcher.stdout is not None
        while self.output.count(text) < times:
            line = self.launcher.stdout.readline()
            assert line, self.output
            self.output += line

    def end(self) -> int:
        """Wait for the launcher's end; its exit status."""
        self.output += self.launcher.communicate(timeout=WITHIN_S)[0]
        return self.launcher.returncode

    def alive(self) -> dict[int, str]:
        """Processes of this job that are there now, the launcher included, with their command lines."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                pid = int(folder.name)
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def kill(self) -> None:
        """Kill what is left of it."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def job(*words: str, env: dict[str, str] | None = None) -> Iterator[Job]:
    """A job; whatever is left of it at the end is killed."""
    running = Job(*words, env=env)
    try:
        yield running
    finally:
        running.kill()
        running.end()
