"""A scheduler that may end this process, and the signals by which it says so beforehand."""

from __future__ import annotations

import signal
from collections.abc import Mapping

SCHEDULED_VARIABLE = "DISTPROF_SCHEDULED"
# With these schedulers announce an end (`sbatch --signal`); with SIGTERM they begin it.
ANNOUNCING = (signal.SIGUSR1, signal.SIGUSR2)


def is_scheduled(environment: Mapping[str, str]) -> bool:
    """Whether a scheduler started this process, and may end it."""
    return bool(environment.get("SLURM_JOB_ID") or environment.get(SCHEDULED_VARIABLE))


def hold_announcements() -> None:
    """Hold back the announcing signals: they would end a process that is not ready for them.

    SLURM sends the one before the time limit up to a minute early, which may be at once.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ANNOUNCING)


def take_announcements() -> None:
    """Let through what was held back, and what comes."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ANNOUNCING)
