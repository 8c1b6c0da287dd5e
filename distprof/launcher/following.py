"""Following a submitted job: its state as the scheduler tells it, and its logs as they grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distprof.launcher.submit import SubmitError, run_command

_ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
_PREEMPTED = "PREEMPTED"  # an end, unless it is requeued
_POLL_S = 1.0
_SILENCES = 60  # states in a row that could not be had
_REQUEUED_WITHIN = 20  # states in a row
_BYTES = 1 << 20
UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class State:
    """A job's state.

    Attributes:
        name: SLURM's word for it; `UNKNOWN` where nobody knows.
        reason: why it waits, or what is odd, in words.
    """

    name: str
    reason: str = ""

    @property
    def is_end(self) -> bool:
        """Whether the job is over, as far as can be known."""
        return self.name in (*_ENDED, _PREEMPTED, UNKNOWN)

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


def parse_job(text: str) -> State | None:
    """The state in what `scontrol show job --oneliner` prints; None where it stands in none."""
    state = re.search(r"\bJobState=(\w+)", text)
    if state is None:
        return None
    reason = re.search(r"\bReason=(\S+)", text)
    told = "" if reason is None or reason[1] in ("None", "(null)") else reason[1]
    return State(state[1], told)


def parse_accounting(text: str) -> State | None:
    """The state in what `sacct --parsable2 --noheader --format=State` prints; None where it stands in none."""
    words = text.split()
    return State(words[0].split("|")[0]) if words else None


def slurm_state(job_id: str) -> State:
    """A job's state: of the controller, which forgets a job some minutes after its end, else of the accounting.

    Raises:
        SubmitError: the controller does not answer.
    """
    try:
        state = parse_job(run_command(["scontrol", "show", "job", "--oneliner", job_id]))
    except SubmitError as error:
        if "Invalid job id" not in str(error):
            raise
        state = None
    if state is not None:
        return state
    try:
        state = parse_accounting(
            run_command(["sacct", "--parsable2", "--noheader", "--allocations", "--format=State", "--jobs", job_id])
        )
    except SubmitError as error:
        return State(UNKNOWN, f"SLURM has forgotten the job, and keeps no accounting: {error}")
    return state or State(UNKNOWN, "SLURM has forgotten the job, and its accounting does not know it")


class Log:
    """A file that somebody else appends to, copied as it grows."""

    def __init__(self, path: Path, write: Callable[[str], object]) -> None:
        self._path = path
        self._write = write
        self._position = 0

    def copy(self) -> None:
        """Copy what is new in it."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while data := file.read(_BYTES):
                    self._position += len(data)
                    self._write(data.decode(errors="replace"))
        except OSError:
            return  # not there yet


class Watched(Protocol):
    """What `follow` asks for."""

    def __call__(self) -> State: ...


def follow(watched: Watched, logs: Iterable[Log], tell: Callable[[str], None], poll_s: float = _POLL_S) -> State:
    """Copy the logs and tell each change of the state, until the job is over; its last state.

    A scheduler that does not answer for a minute is waited for no longer.
    """
    logs = list(logs)
    last, silences, preempted = "", 0, 0
    while True:
        try:
            state = watched()
            silences = 0
        except SubmitError as error:
            silences += 1
            if silences >= _SILENCES:
                return State(UNKNOWN, str(error))
            state = State(last, str(error))
        for log in logs:
            log.copy()
        if state.name != last:
            tell(str(state))
            last = state.name
        preempted = preempted + 1 if state.name == _PREEMPTED else 0  # it may be queued again a moment later
        time.sleep(poll_s)
        if state.is_end and not silences and preempted in (0, _REQUEUED_WITHIN):
            for log in logs:  # what arrived late, on a network's disk
                log.copy()
            return state
