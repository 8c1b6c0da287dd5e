"""What submitit runs on each node: `distprof launch` in a process of its own, which gets the scheduler's signals."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from functools import partial
from types import FrameType

from distprof.run.processes import end_with_parent
from distprof.run.scheduled import ANNOUNCING, SCHEDULED_VARIABLE, hold_announcements

_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *ANNOUNCING)


class LaunchFailed(RuntimeError):
    """The launch did not end with status 0. Its ranks' own exit codes stand in the run directory."""


@dataclass(frozen=True, slots=True)
class LaunchTask:
    """A launch, as submitit pickles it.

    Attributes:
        words: the command.
    """

    words: tuple[str, ...]

    def __call__(self) -> None:
        """Run it to its end.

        Raises:
            LaunchFailed: it did not end with status 0.
        """
        # submitit itself would requeue the job at a signal, and training would begin anew without being asked for.
        process: subprocess.Popen[bytes] | None = None
        too_early: list[int] = []  # they came before there was anybody to hand them on to

        def hand_on(number: int, _: FrameType | None) -> None:
            if process is None:
                too_early.append(number)
            elif process.poll() is None:
                process.send_signal(number)

        before = {number: signal.signal(number, hand_on) for number in _HANDED_ON}
        try:
            # In a process group of its own, or the scheduler's signals would reach it twice.
            process = subprocess.Popen(
                self.words,
                process_group=0,
                env={**os.environ, SCHEDULED_VARIABLE: "1"},
                preexec_fn=partial(_before_it_begins, os.getpid()),  # noqa: PLW1509 - there is one thread
            )
            for number in too_early:
                process.send_signal(number)
            status = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if status != 0:
            how = f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}"
            raise LaunchFailed(f"{' '.join(self.words)}: {how}")


def _before_it_begins(parent: int) -> None:
    """Hold back signals until it can handle them; and end with the parent, should it be killed: nobody else tells."""
    hold_announcements()
    end_with_parent(parent, signal.SIGTERM)
